//! S14: fences grow, in the order in which the server grants, and a holder is told the one that was minted for it.

use std::collections::BTreeMap;

/// What was minted so far.
#[derive(Default)]
pub(super) struct Fences {
    /// The last of each key, and whether the server may have forgotten it since.
    last: BTreeMap<Vec<u8>, (u64, bool)>,
    /// Those of each request: one for each write of it that was carried out.
    of: BTreeMap<u64, Vec<u64>>,
    /// The server's clock was set, so that after a loss of data it may be behind.
    clock_was_set: bool,
}

impl Fences {
    /// The server has minted a fence.
    pub(super) fn minted(&mut self, request: u64, key: &[u8], fence: u64) -> Result<(), String> {
        self.of.entry(request).or_default().push(fence);
        match self.last.insert(key.to_vec(), (fence, false)) {
            // Its own clock is all that a server goes by that has forgotten.
            Some((_, true)) if self.clock_was_set => Ok(()),
            // Nor does it take a microsecond to forget and to mint, here.
            Some((last, true)) if fence == last => Ok(()),
            Some((last, _)) if fence <= last => Err(format!(
                "S14 fence {fence} of {} comes after {last}",
                key.escape_ascii()
            )),
            _ => Ok(()),
        }
    }

    /// The server may have forgotten everything.
    pub(super) fn forgotten(&mut self) {
        self.last.values_mut().for_each(|last| last.1 = true);
    }

    pub(super) fn clock_was_set(&mut self) {
        self.clock_was_set = true;
    }

    /// What a holder was told: nothing, unless it has asked for a fence.
    pub(super) fn told(&self, request: u64, asked: bool, fence: Option<u64>) -> Result<(), String> {
        let minted = self.of.get(&request).map_or(&[][..], Vec::as_slice);
        let fits = match fence {
            None => !asked,
            Some(fence) => asked && minted.contains(&fence),
        };
        match fits {
            true => Ok(()),
            false => Err(format!(
                "S14 request {request} is told the fence {fence:?} of {minted:?}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_falls_is_found_and_what_nobody_can_know_is_excused() {
        let mut fences = Fences::default();
        assert_eq!(fences.minted(1, b"a", 7), Ok(()));
        assert_eq!(fences.minted(2, b"b", 7), Ok(()));
        assert!(fences.minted(3, b"a", 7).is_err());
        // A restart without data: the clock has gone on.
        fences.forgotten();
        assert!(fences.minted(4, b"a", 6).is_err());
        fences.clock_was_set();
        assert!(fences.minted(5, b"a", 5).is_err());
        fences.forgotten();
        assert_eq!(fences.minted(6, b"a", 4), Ok(()));
        assert!(fences.minted(7, b"a", 4).is_err());
        assert_eq!(fences.told(6, true, Some(4)), Ok(()));
        assert_eq!(fences.told(8, false, None), Ok(()));
        assert!(fences.told(6, true, Some(5)).is_err());
        assert!(fences.told(6, true, None).is_err());
        assert!(fences.told(6, false, Some(4)).is_err());
    }
}
