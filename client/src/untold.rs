//! What the observer is still to be told.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::leases::Notice;
use tenure_core::mux::LinkEvent;

use crate::engine::ClockStep;
use crate::error::Error;
use crate::hold::Hold;
use crate::lock::Lost;
use crate::observer::{Event, Observer};

/// One event, kept until no lock is held.
pub(crate) enum Untold {
    Lease(Arc<Hold>, Notice, Duration),
    Link(LinkEvent),
    Clock(ClockStep),
    Dropped(Arc<Hold>, Duration),
    Cancelled(Arc<Hold>, Duration),
}

impl Untold {
    /// Tells it. A panic of the observer has been printed by then, and goes no further: it must not take a driver down, or
    /// a process in the middle of another panic.
    pub(crate) fn tell(self, observer: &dyn Observer) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.tell_to(observer)));
    }

    fn tell_to(&self, observer: &dyn Observer) {
        match self {
            Untold::Link(LinkEvent::Up(info)) => observer.event(&Event::Connected(info)),
            Untold::Link(LinkEvent::Down(fault)) => observer.event(&Event::Disconnected(*fault)),
            Untold::Link(LinkEvent::Failed { fault, text }) => {
                observer.event(&Event::ConnectFailed {
                    fault: *fault,
                    text: text.as_deref(),
                });
            }
            Untold::Link(LinkEvent::Unwatched(why)) => observer.event(&Event::Unwatched(why)),
            Untold::Link(LinkEvent::Risk(risk)) => observer.event(&Event::Risk(risk)),
            Untold::Link(_) => {}
            Untold::Clock(step) => observer.event(&Event::ClockStepped(step)),
            Untold::Dropped(hold, held) => {
                observer.event(&Event::Dropped {
                    name: hold.name(),
                    held: *held,
                });
            }
            Untold::Cancelled(hold, waited) => {
                observer.event(&Event::Cancelled {
                    name: hold.name(),
                    waited: *waited,
                });
            }
            Untold::Lease(hold, notice, lasted) => {
                tell_lease(observer, hold.name(), notice, *lasted)
            }
        }
    }
}

fn tell_lease(observer: &dyn Observer, name: &[u8], notice: &Notice, lasted: Duration) {
    let failed = |error: &Error| {
        observer.event(&Event::Failed {
            name,
            error,
            waited: lasted,
        })
    };
    match notice {
        Notice::Acquired { .. } => observer.event(&Event::Acquired {
            name,
            waited: lasted,
        }),
        Notice::Held(holder) => observer.event(&Event::Held { name, holder }),
        Notice::TimedOut(holder) => failed(&Error::TimedOut {
            holder: holder.clone(),
        }),
        Notice::Failed(fault) => failed(&fault.clone().into()),
        Notice::Renewed { .. } => observer.event(&Event::Renewed { name }),
        Notice::RenewalFailed(fault) => {
            observer.event(&Event::RenewalFailed {
                name,
                error: &fault.clone().into(),
            });
        }
        // The loss follows.
        Notice::Vanished => {}
        Notice::Lost { lost, by } => {
            let lost = Lost::new(*lost, by.clone());
            observer.event(&Event::Lost {
                name,
                lost: &lost,
                held: lasted,
            });
        }
        Notice::Released { confirmed } => {
            observer.event(&Event::Released {
                name,
                confirmed: *confirmed,
                held: lasted,
            });
        }
        Notice::Abandoned => observer.event(&Event::Abandoned { name }),
    }
}
