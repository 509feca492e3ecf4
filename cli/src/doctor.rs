//! `tenure doctor`: whether a store is fit for locks, and what to do where it is not.

mod facts;
mod probes;
mod server;

use serde_json::{Value, json};
use tenure::Error;

use crate::args::StoreArgs;
use crate::exit::{self, Failure};
use crate::print::{Color, Style, print, print_json};
use crate::store::Store;
use server::Patient;

/// Check whether a store is fit for locks, and say what to do
#[derive(Debug, clap::Args)]
#[command(before_help = "Example: tenure doctor --store redis://db1/")]
#[command(max_term_width = 80)]
#[command(
    after_help = "Takes locks of its own only, below `tenure-doctor`. Exit status: 0, also with \
        warnings; 1 something fails, 69 it cannot look, 64 usage."
)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// One JSON array on standard output
    #[arg(long)]
    json: bool,

    /// auto, always or never
    #[arg(
        long,
        value_enum,
        default_value_t,
        value_name = "WHEN",
        hide_possible_values = true
    )]
    color: Color,
}

/// What was looked at, and how it is.
struct Check {
    /// Its name, for programs too: it does not change.
    check: &'static str,
    grade: Grade,
    detail: String,
    /// What to do.
    fix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grade {
    Ok,
    /// Locks work, until something happens.
    Warn,
    /// Locks do not work.
    Fail,
}

pub(crate) fn doctor(args: &DoctorArgs) -> Result<u8, Failure> {
    let store = Store::find(&args.store)?;
    let (checks, reached) = match Patient::reach(&store) {
        Ok(patient) => (patient.checks(), true),
        Err(error) => (vec![unreached(&error)], false),
    };
    if args.json {
        let all: Vec<Value> = checks.iter().map(Check::json).collect();
        print_json(&all.into())?;
    } else {
        let colored = args.color.is_wanted();
        let lines: String = checks.iter().map(|check| check.text(colored)).collect();
        print(&lines)?;
    }
    Ok(
        match checks.iter().any(|check| check.grade == Grade::Fail) {
            _ if !reached => exit::UNAVAILABLE,
            true => FAILED,
            false => exit::DONE,
        },
    )
}

/// The status when something fails.
const FAILED: u8 = 1;

fn unreached(error: &Error) -> Check {
    let fix = match error {
        Error::Denied(_) => "set the right user and password in the URL, percent-encoded",
        Error::Protocol(_) => {
            "look at host and port, and whether it speaks TLS: then the URL begins with rediss://"
        }
        Error::Misconfigured(_) => "change the URL, or the server, as it says",
        _ => "start the server, or look at host, port and firewall",
    };
    Check::fail("reach", error.to_string(), fix)
}

impl Check {
    fn ok(check: &'static str, detail: impl Into<String>) -> Check {
        Check {
            check,
            grade: Grade::Ok,
            detail: detail.into(),
            fix: None,
        }
    }

    fn warn(check: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Check {
        Check {
            grade: Grade::Warn,
            fix: Some(fix.into()),
            ..Check::ok(check, detail)
        }
    }

    fn fail(check: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Check {
        Check {
            grade: Grade::Fail,
            ..Check::warn(check, detail, fix)
        }
    }

    fn json(&self) -> Value {
        json!({
            "check": self.check,
            "status": self.grade.word(),
            "detail": self.detail,
            "fix": self.fix,
        })
    }

    fn text(&self, colored: bool) -> String {
        let style = match self.grade {
            Grade::Ok => Style::Good,
            Grade::Warn => Style::Odd,
            Grade::Fail => Style::Bad,
        };
        let grade = style.paint(&format!("{:<4}", self.grade.word()), colored);
        let line = format!("{grade}  {:<13}  {}\n", self.check, self.detail);
        match &self.fix {
            Some(fix) => format!("{line}{:21}-> {fix}\n", ""),
            None => line,
        }
    }
}

impl Grade {
    fn word(self) -> &'static str {
        match self {
            Grade::Ok => "ok",
            Grade::Warn => "warn",
            Grade::Fail => "fail",
        }
    }
}
