//! The owner token: with it, and with nothing less, a hold can be released by somebody else.

use std::fmt;

/// What a hold has written under its key, and nobody else has: whoever knows it may release the lock with
/// [`Locks::release_by_token`](crate::Locks::release_by_token), from another process or another machine.
///
/// A secret: `Debug` does not show it. Hand it to a program that the lock is held for, and to nobody else.
///
/// ```
/// # use tenure_client as tenure;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// use tenure::OwnerToken;
///
/// # let locks = tenure_tokio::memory();
/// let lock = locks.acquire("report").await?;
/// let text = lock.token().expect("it is held, and does not rotate").as_str().to_owned();
/// // ... elsewhere ...
/// let token = OwnerToken::new(text).expect("it is one");
/// let removed = locks.release_by_token("report", &token).await?;
/// assert!(removed.is_some() && !lock.is_held());
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct OwnerToken(Box<str>);

/// No token is longer: a mark, a time, a label, a secret and a number.
const MOST: usize = 256;

impl OwnerToken {
    /// A token as [`as_str`](OwnerToken::as_str) gave it; `None` for what cannot be one.
    pub fn new(text: impl Into<Box<str>>) -> Option<OwnerToken> {
        let text = text.into();
        let is_one = text.starts_with("tn1:") && text.len() <= MOST;
        is_one.then_some(OwnerToken(text))
    }

    pub(crate) fn of(value: &[u8]) -> Option<OwnerToken> {
        OwnerToken::new(std::str::from_utf8(value).ok()?)
    }

    /// The token itself, to be handed on: ASCII without blanks.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerToken(..)")
    }
}
