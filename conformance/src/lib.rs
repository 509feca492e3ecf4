//! What every runtime and every store has to do, as scenarios that are written once.
//!
//! A [`Scenario`] is an `async fn` of a [`Scene`]: it opens clients, lets time pass, looks at keys and makes trouble,
//! and never learns which runtime drives it or which store it works on. A [`Runtime`](runtime::Runtime) gives it
//! clients and time, a [`Stage`](stage::Stage) the store and what may be done to it. There is no list of scenarios to skip:
//! a scenario says what it [needs](Need), a stage says what it [can](stage::Stage::can), and `docs/runtimes.md` shows both
//! tables with the results.
//!
//! A new runtime is one more file beside those in [`runtimes`].

#![forbid(unsafe_code)]

pub mod matrix;
pub mod page;
pub mod party;
pub mod report;
pub mod runtime;
pub mod runtimes;
pub mod scenarios;
pub mod scene;
pub mod stage;
pub mod stages;

use std::future::Future;
use std::pin::Pin;

pub use party::{Guard, Party, Tried};
pub use scene::Scene;
pub use tenure_tests::Failure;

/// What becomes of a scenario.
pub type Outcome = Result<(), Failure>;

/// A future of whatever runtime.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// One promise, shown.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Its name, which says what is promised.
    pub name: &'static str,
    /// What it cannot do without.
    pub needs: &'static [Need],
    /// Shows it.
    pub show: fn(Scene) -> Boxed<Outcome>,
}

/// Something that not every store can do, or have done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// Somebody else can read and write the keys.
    Keys,
    /// What they write may be of another type than a string.
    Types,
    /// There is a connection, to be cut, silenced, slowed down and refused.
    Link,
    /// There is a server, to be stopped, emptied and made to refuse.
    Server,
    /// It tells of changes by itself.
    Push,
}

impl Need {
    /// All there are.
    pub const ALL: [Need; 5] = [
        Need::Keys,
        Need::Types,
        Need::Link,
        Need::Server,
        Need::Push,
    ];

    /// In words, for a table.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Need::Keys => "keys that others can read and write",
            Need::Types => "keys of other types",
            Need::Link => "a connection",
            Need::Server => "a server that can be stopped",
            Need::Push => "word of changes",
        }
    }
}

impl std::fmt::Debug for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scenario")
            .field("name", &self.name)
            .field("needs", &self.needs)
            .finish_non_exhaustive()
    }
}
