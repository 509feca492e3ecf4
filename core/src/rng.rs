//! A small deterministic generator for jitter. It never makes a secret.
//!
//! ```
//! use core::time::Duration;
//! use tenure_core::rng::Rng;
//!
//! let (mut a, mut b) = (Rng::new(7), Rng::new(7));
//! assert_eq!(a.next_u64(), b.next_u64());
//! assert!(a.up_to(Duration::from_millis(10)) <= Duration::from_millis(10));
//! ```

use core::time::Duration;

use crate::time::micros;

/// SplitMix64: eight bytes of state, the same sequence for the same seed.
///
/// Good enough to spread retries, and predictable: the secrets of values come from the caller.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator with this seed.
    pub const fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A span between zero and `most`, both included, in whole microseconds.
    pub fn up_to(&mut self, most: Duration) -> Duration {
        let range = u128::from(micros(most)) + 1;
        // Multiply and shift: no division, and a bias far below what jitter could notice.
        let micros = (u128::from(self.next_u64()) * range) >> 64;
        Duration::from_micros(micros as u64)
    }
}
