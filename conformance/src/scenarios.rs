//! The scenarios.

mod asking;
mod cooling;
mod fair;
mod fencing;
mod keeping;
mod leaving;
mod losing;
mod operator;
mod server;
mod waking;
mod weather;

use crate::Scenario;

/// All there are.
#[must_use]
pub fn all() -> Vec<Scenario> {
    [
        asking::ALL,
        keeping::ALL,
        losing::ALL,
        waking::ALL,
        leaving::ALL,
        operator::ALL,
        fencing::ALL,
        fair::ALL,
        cooling::ALL,
        weather::ALL,
        server::ALL,
    ]
    .concat()
}

/// The list of a module: the name of each scenario and what it needs.
macro_rules! scenarios {
    ($($name:ident: [$($need:ident),*];)*) => {
        pub(super) const ALL: &[crate::Scenario] = &[$(crate::Scenario {
            name: stringify!($name),
            needs: &[$(crate::Need::$need),*],
            show: |scene| Box::pin($name(scene)),
        }),*];
    };
}
use scenarios;
