//! `tenure completions` and `tenure man`: what a package installs beside the program.

use clap_complete::Shell;

use crate::args::Args;
use crate::exit::{self, Failure, NO_EVENTS};
use crate::print::print;

/// Print the completions for a shell
#[derive(Debug, clap::Args)]
#[command(before_help = "Example: tenure completions bash > /etc/bash_completion.d/tenure")]
#[command(max_term_width = 80)]
pub(crate) struct CompletionsArgs {
    /// bash, zsh, fish, elvish or powershell
    #[arg(value_enum, hide_possible_values = true)]
    shell: Shell,
}

/// Print the manual page
#[derive(Debug, clap::Args)]
#[command(before_help = "Example: tenure man | man -l -")]
#[command(max_term_width = 80)]
#[command(after_help = "With a VERB its own page, as in `tenure man run`.")]
pub(crate) struct ManArgs {
    /// Of this one
    verb: Option<String>,
}

pub(crate) fn completions(args: &CompletionsArgs) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::definition(), "tenure", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(exit::DONE)
}

pub(crate) fn man(args: &ManArgs) -> Result<u8, Failure> {
    let mut command = Args::definition();
    command.build();
    let command = match &args.verb {
        None => command,
        Some(verb) => {
            // Built, it is named as its page is.
            let found = command.find_subcommand(verb).cloned();
            found.ok_or_else(|| {
                Failure::usage(format!("there is no verb `{}`", verb.escape_debug()))
            })?
        }
    };
    // A page leaves nothing out.
    let command = command.mut_args(|arg| arg.hide_short_help(false));
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut page)
        .map_err(|error| {
            Failure::new(NO_EVENTS, "no-output", format!("no manual page: {error}"))
        })?;
    print(&String::from_utf8_lossy(&page))?;
    Ok(exit::DONE)
}
