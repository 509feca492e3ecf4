//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{
    Arg, ArgAction, Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand,
    ValueEnum,
};

use crate::bench::BenchArgs;
use crate::completions::{CompletionsArgs, ManArgs};
use crate::doctor::DoctorArgs;
use crate::list::ListArgs;
use crate::release::ReleaseArgs;
use crate::status::StatusArgs;
use crate::watch::WatchArgs;

/// Run commands under a distributed lock.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, max_term_width = 80)]
#[command(before_help = "Example: tenure run nightly-report --wait 30s -- ./report.sh")]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Run(Box<RunArgs>),
    Status(StatusArgs),
    List(ListArgs),
    Release(ReleaseArgs),
    Watch(WatchArgs),
    Doctor(DoctorArgs),
    Bench(BenchArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Run a command under a lock: one at a time, on all machines that share the store
#[derive(Debug, clap::Args)]
#[command(before_help = "Example: tenure run nightly-report --wait 30s -- ./report.sh")]
#[command(max_term_width = 80)]
#[command(override_usage = "tenure run NAME [OPTIONS] [--] COMMAND [ARGS]...")]
#[command(
    after_help = "Exit status: the command's own; 75 held, 76 lost, 69 no store, 77 refused by it,
64 usage. A DURATION is 30, 1.5s, 10m or 2h. All options: tenure help run",
    after_long_help = "Exit status: the command's own; 75 held by somebody else, 76 lost meanwhile,
69 no store, 77 refused by it, 64 usage, 73 no file of one's own can be made,
74 the events cannot be written, 126 the command cannot run, 127 it was not
found. A DURATION is one number and one unit: 30 (seconds), 250ms, 1.5s, 10m,
2h, 1d."
)]
pub(crate) struct RunArgs {
    /// Of the lock: any bytes, 1 to 1,024
    pub(crate) name: OsString,

    /// What to run; no shell is involved
    #[arg(required = true, trailing_var_arg = true, value_names = ["COMMAND", "ARGS"])]
    pub(crate) command: Vec<OsString>,

    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// How long to wait, or `forever`
    #[arg(short, long, value_name = "DURATION", default_value = "0", value_parser = parse_wait)]
    pub(crate) wait: Patience,

    /// As --wait 0, which is the default
    #[arg(short = 'n', hide = true, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// How long it stays taken if we die
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    pub(crate) lease: Duration,

    /// First come, first served
    #[arg(long)]
    pub(crate) fair: bool,

    /// Give up if that many wait already (implies --fair)
    #[arg(hide_short_help = true, long, value_name = "N")]
    pub(crate) max_waiters: Option<u32>,

    /// With a fencing token, in TENURE_FENCE
    #[arg(long)]
    pub(crate) fenced: bool,

    /// Keep the name taken so long from the start on
    #[arg(hide_short_help = true, long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) at_least: Option<Duration>,

    /// If lost: term, kill or ignore
    #[arg(
        long,
        value_enum,
        default_value_t,
        value_name = "HOW",
        hide_possible_values = true
    )]
    pub(crate) on_lost: OnLost,

    /// Time from TERM to KILL
    #[arg(hide_short_help = true, long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    pub(crate) grace: Duration,

    /// End what the command left in the background
    #[arg(hide_short_help = true, long)]
    pub(crate) end_group: bool,

    /// Leave the command in our own process group
    #[arg(hide_short_help = true, long)]
    pub(crate) foreground: bool,

    /// Exit status if it is taken
    #[arg(short = 'E', long, value_name = "N", default_value_t = crate::exit::REFUSED)]
    pub(crate) conflict_exit_code: u8,

    /// Exit status when it is lost
    #[arg(hide_short_help = true, long, value_name = "STATUS", default_value_t = crate::exit::LOST)]
    pub(crate) lost_exit_code: u8,

    /// What others see as the holder, before host:pid
    #[arg(hide_short_help = true, long)]
    pub(crate) label: Option<String>,

    /// Warn, even if --quiet, of a holder older than that
    #[arg(hide_short_help = true, long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) stale_after: Option<Duration>,

    /// Append what happens, as JSON lines
    #[arg(long, value_name = "FILE", conflicts_with = "events_fd")]
    pub(crate) events: Option<PathBuf>,

    /// The same, to an open file descriptor
    #[arg(hide_short_help = true, long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) events_fd: Option<i32>,

    /// Let the command know the store, as TENURE_STORE
    #[arg(hide_short_help = true, long)]
    pub(crate) pass_store: bool,

    /// Say nothing
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Say more
    #[arg(hide_short_help = true, short, long)]
    pub(crate) verbose: bool,
}

/// Where the locks are.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// The store; `ps` shows it, but not TENURE_STORE
    ///
    /// Else TENURE_STORE, else the content of the file TENURE_STORE_FILE, else a file of your own, for this machine.
    #[arg(
        long,
        value_name = "URL",
        env = "TENURE_STORE",
        hide_env = true,
        hide_env_values = true
    )]
    pub(crate) store: Option<String>,
}

/// How long to wait for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// One try.
    None,
    For(Duration),
    Forever,
}

/// What becomes of a command whose lock is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// TERM, then KILL while the name is still ours
    #[default]
    Term,
    /// KILL at once
    Kill,
    /// Nothing: it runs on
    Ignore,
}

impl Args {
    pub(crate) fn of(words: &[OsString]) -> Result<Args, clap::Error> {
        match forgets_the_name(words) {
            true => Err(no_name()),
            false => Args::parse_words(words),
        }
    }

    fn parse_words(words: &[OsString]) -> Result<Args, clap::Error> {
        let mut definition = Args::definition();
        let matches = definition.try_get_matches_from_mut(words)?;
        Args::from_arg_matches(&matches).map_err(|error| error.format(&mut definition))
    }

    /// With a `--help` that fits a screen, as `-h` does. All of it is behind `tenure help VERB`, and on the manual page.
    pub(crate) fn definition() -> Command {
        let help = || {
            let help = Arg::new("help").short('h').long("help");
            help.action(ArgAction::HelpShort).help("Print help")
        };
        let tenure = Args::command().disable_help_flag(true).arg(help());
        let verbs: Vec<String> = tenure
            .get_subcommands()
            .map(|verb| verb.get_name().to_owned())
            .collect();
        verbs.into_iter().fold(tenure, |tenure, verb| {
            tenure.mut_subcommand(verb, |verb| verb.disable_help_flag(true).arg(help()))
        })
    }
}

/// Whether the first `--` of a run comes before its name. The parser would take the command for the name, and run its argument.
fn forgets_the_name(words: &[OsString]) -> bool {
    let dashes = words.iter().position(|word| word == "--");
    let (Some(at), Some(true)) = (dashes, words.get(1).map(|verb| verb == "run")) else {
        return false;
    };
    let Err(error) = Args::parse_words(&words[..at]) else {
        return false;
    };
    let missing = error.get(ContextKind::InvalidArg);
    error.kind() == ErrorKind::MissingRequiredArgument
        && matches!(missing, Some(ContextValue::Strings(args)) if args.iter().any(|arg| arg == "<NAME>"))
}

fn no_name() -> clap::Error {
    let mut tenure = Args::definition();
    let run = tenure.find_subcommand_mut("run").expect("a verb");
    let text = "the name of the lock comes first: tenure run NAME -- COMMAND";
    run.error(ErrorKind::MissingRequiredArgument, text)
}

impl RunArgs {
    pub(crate) fn patience(&self) -> Patience {
        match self.no_wait {
            true => Patience::None,
            false => self.wait,
        }
    }
}

fn parse_wait(text: &str) -> Result<Patience, String> {
    if text == "forever" {
        return Ok(Patience::Forever);
    }
    let limit = parse_duration(text).map_err(|error| format!("{error}, or `forever`"))?;
    Ok(match limit.is_zero() {
        true => Patience::None,
        false => Patience::For(limit),
    })
}

/// A number with a unit; a bare one is seconds, as with flock and timeout.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    const ALLOWED: &str = "one number and one unit: 30 (seconds), 250ms, 1.5s, 10m, 2h, 1d";
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let unit = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return Err(ALLOWED.to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| ALLOWED.to_owned())?;
    Duration::try_from_secs_f64(number * unit).map_err(|_| "that is too long".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<RunArgs, clap::Error> {
        let words = ["tenure", "run"].iter().chain(words);
        let words: Vec<OsString> = words.map(OsString::from).collect();
        Args::of(&words).map(|args| match args.verb {
            Verb::Run(args) => *args,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn the_definition_is_sound() {
        Args::definition().debug_assert();
    }

    #[test]
    fn a_bare_number_is_seconds() {
        for (text, ms) in [
            ("30", 30_000),
            ("1.5", 1_500),
            ("250ms", 250),
            ("2s", 2_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("0", 0),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(ms)),
                "{text}"
            );
        }
        for text in [
            "", "s", "-1", "1w", "1 s", "1.2.3", "forever", "1e400d", ".",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert_eq!(parse_wait("forever"), Ok(Patience::Forever));
        assert_eq!(parse_wait("0"), Ok(Patience::None));
    }

    #[test]
    fn options_stop_at_the_first_word_after_the_name() {
        let args = parse(&["job", "-w", "5", "grep", "-n", "--wait", "x"]).unwrap();
        assert_eq!(args.command, ["grep", "-n", "--wait", "x"]);
        assert_eq!(args.patience(), Patience::For(Duration::from_secs(5)));
        let args = parse(&["job", "-n", "--", "--odd", "--"]).unwrap();
        assert_eq!(args.command, ["--odd", "--"]);
        assert_eq!(args.patience(), Patience::None);
        let args = parse(&["-E", "0", "--fair", "job", "true"]).unwrap();
        assert_eq!((args.conflict_exit_code, args.fair), (0, true));
    }

    /// What the documentation shows can be typed.
    #[test]
    fn every_run_in_the_documents_is_understood() {
        let pages = [
            include_str!("../../docs/recipes.md"),
            include_str!("../../docs/command-line.md"),
            include_str!("../../README.md"),
        ];
        let mut runs = 0;
        for line in pages.iter().flat_map(|page| page.lines()) {
            let line = line.replace([',', '[', ']', '"', '`', '(', ')'], " ");
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some(at) = words
                .windows(2)
                .position(|words| words[1] == "run" && words[0].ends_with("tenure"))
            else {
                continue;
            };
            // Some lines show options alone.
            if words[at..].contains(&"--") && !line.contains("--help") {
                let parsed = parse(&words[at + 2..]);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                runs += 1;
            }
        }
        assert!(runs > 10, "{runs}");
    }

    #[test]
    fn an_exit_code_is_a_byte() {
        for code in ["256", "600", "-1", "x"] {
            assert!(parse(&["job", "-E", code, "true"]).is_err(), "{code}");
            let lost = ["job", "--lost-exit-code", code, "true"];
            assert!(parse(&lost).is_err(), "{code}");
        }
    }

    /// Over the whole tree: a value of the environment in a help text is how tokens leak.
    #[test]
    fn no_help_shows_a_value_of_the_environment() {
        fn walk(command: &clap::Command) {
            for arg in command.get_arguments() {
                assert!(
                    arg.get_env().is_none() || arg.is_hide_env_values_set(),
                    "{}: {}",
                    command.get_name(),
                    arg.get_id()
                );
            }
            command.get_subcommands().for_each(walk);
        }
        walk(&Args::definition());
    }
}
