//! What each verb says of itself.

use crate::harness::{bare, said};
use crate::kept;

/// All of them, and the program itself.
const VERBS: [&str; 10] = [
    "",
    "run",
    "status",
    "list",
    "release",
    "watch",
    "doctor",
    "bench",
    "completions",
    "man",
];

fn help(verb: &str, option: &str) -> String {
    let words = verb.split(' ').chain([option]);
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let mut command = bare(&words);
    // Whatever the environment holds, no help shows it.
    for variable in ["TENURE_STORE", "TENURE_STORE_FILE", "TENURE_TOKEN"] {
        command.env(variable, "s3cret");
    }
    let (status, out, err) = said(&mut command);
    assert_eq!((status, &*err), (0, ""), "{words:?}");
    assert!(!out.contains("s3cret"), "{out}");
    out
}

#[test]
fn a_help_is_what_was_read_last() {
    for verb in VERBS {
        let name = match verb {
            "" => "tenure",
            verb => verb,
        };
        kept::file(&format!("snapshots/{name}.txt"), &help(verb, "--help"));
    }
    kept::file("snapshots/help-run.txt", &help("help run", ""));
}

#[test]
fn a_help_fits_a_screen_and_begins_with_an_example() {
    for verb in VERBS {
        let text = help(verb, "--help");
        assert_eq!(text, help(verb, "-h"));
        let example = format!("Example: tenure {verb}");
        assert!(text.starts_with(example.trim_end()), "{text}");
        assert!(text.lines().count() <= 24, "{text}");
        let widest = text.lines().map(str::len).max();
        assert!(widest <= Some(80), "{text}");
    }
}

#[test]
fn there_is_no_verb_without_a_help_here() {
    let text = help("", "--help");
    let (_, list) = text.split_once("Commands:\n").unwrap();
    let verbs = list.lines().take_while(|line| !line.is_empty());
    // What goes on in a second line is further in.
    let verbs = verbs.filter(|line| !line.starts_with("   "));
    let verbs = verbs.map(|line| line.split_whitespace().next().unwrap());
    // That of the parser, which has no page of its own.
    let verbs = verbs.filter(|verb| *verb != "help");
    assert_eq!(verbs.collect::<Vec<_>>(), VERBS[1..]);
}

#[test]
fn help_and_a_verb_leaves_nothing_out() {
    for verb in VERBS {
        let all = help(&format!("help {verb}"), "");
        assert!(all.starts_with(&format!("Example: tenure {verb}")), "{all}");
        for option in help(verb, "--help").split_whitespace() {
            assert!(
                !option.starts_with("--") || all.contains(option),
                "{option}: {all}"
            );
        }
    }
    let all = help("help run", "");
    assert!(all.contains("--lost-exit-code") && all.contains("--pass-store"));
}

#[test]
fn a_misspelt_verb_is_a_usage_error_that_names_the_nearest() {
    let (status, out, err) = said(&mut bare(&["staus", "a"]));
    assert_eq!((status, &*out), (64, ""));
    assert!(err.contains("status"), "{err}");
}
