//! The core depends on nothing and knows no clock, no runtime and no source of randomness.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the core may depend on, at most.
const ALLOWED: [&str; 1] = ["bytes"];

/// What its sources must not name.
const FORBIDDEN: [&str; 6] = [
    "std::time",
    "Instant",
    "SystemTime",
    "tokio",
    "getrandom",
    "rand::",
];

/// Checks both.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let mut complaints = Vec::new();
    for features in ["--all-features", "--no-default-features"] {
        let output = Command::new("cargo")
            .args([
                "tree",
                "-p",
                "tenure-core",
                "-e",
                "normal",
                "--prefix",
                "none",
            ])
            .arg(features)
            .current_dir(root)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("cargo tree: {error}"))?;
        if !output.status.success() {
            return Err(format!(
                "cargo tree: {}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        let tree = String::from_utf8_lossy(&output.stdout);
        complaints.extend(
            strangers(&tree).map(|name| format!("tenure-core depends on {name} ({features})")),
        );
    }
    let sources = root.join("core/src");
    for file in files(&sources).map_err(|error| format!("{}: {error}", sources.display()))? {
        let text =
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let shown = file.strip_prefix(root).unwrap_or(&file).display();
        complaints
            .extend(offences(&text).map(|(line, word)| format!("{shown}:{line}: names `{word}`")));
    }
    match complaints.is_empty() {
        true => Ok(()),
        false => Err(complaints.join("\n  ")),
    }
}

fn strangers(tree: &str) -> impl Iterator<Item = &str> {
    tree.lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| !ALLOWED.contains(name))
}

/// Lines that name something forbidden. Comments may.
fn offences(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    text.lines().enumerate().flat_map(|(index, line)| {
        let code = line.split("//").next().unwrap_or_default();
        FORBIDDEN
            .into_iter()
            .filter(|word| names(code, word))
            .map(move |word| (index + 1, word))
    })
}

/// Whether the code has the word as a word of its own.
fn names(code: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(part) && (word.ends_with(':') || !after.is_some_and(part))
    })
}

fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_seen_and_a_comment_is_not() {
        let text =
            "use std::time::Duration;\n// an Instant\nlet operand::x = Instants;\nInstant::now()";
        let found: Vec<_> = offences(text).collect();
        assert_eq!(found, [(1, "std::time"), (4, "Instant")]);
    }

    #[test]
    fn only_bytes_may_be_depended_on() {
        let tree = "tenure-core v0.1.0 (/x)\nbytes v1.0.0\nlibc v0.2.0\n";
        assert_eq!(strangers(tree).collect::<Vec<_>>(), ["libc"]);
    }
}
