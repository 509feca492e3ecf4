//! Running named steps, one after the other, and saying how it went.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The steps so far.
pub(crate) struct Steps {
    root: PathBuf,
    done: Vec<(String, Duration)>,
    began: Instant,
}

impl Steps {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            done: Vec::new(),
            began: Instant::now(),
        }
    }

    /// Runs a step inside this program; `again` is the command that repeats it.
    pub(crate) fn step(
        &mut self,
        name: &str,
        again: &str,
        work: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        println!("\n=== {name}");
        let began = Instant::now();
        let result = work();
        let took = began.elapsed();
        match result {
            Ok(()) => {
                println!("--- {name}: ok in {:.1} s", took.as_secs_f64());
                self.done.push((name.to_owned(), took));
                Ok(())
            }
            Err(why) => {
                self.summary();
                Err(format!(
                    "{name} FAILED after {:.1} s: {why}\nrepeat it with: {again}",
                    took.as_secs_f64()
                ))
            }
        }
    }

    /// Runs a step that is a command, in the root of the workspace. `line` is split at spaces, except in the
    /// parts between single quotes.
    pub(crate) fn command(
        &mut self,
        name: &str,
        variables: &[(&str, &str)],
        line: &str,
    ) -> Result<(), String> {
        let again: String = variables
            .iter()
            .map(|(name, value)| format!("{name}='{value}' "))
            .chain([line.to_owned()])
            .collect();
        let root = self.root.clone();
        self.step(name, &again, || {
            let words = split(line);
            let status = Command::new(&words[0])
                .args(&words[1..])
                .envs(variables.iter().copied())
                .current_dir(root)
                .stdin(Stdio::null())
                .status()
                .map_err(|error| format!("{}: {error}", words[0]))?;
            match status.success() {
                true => Ok(()),
                false => Err(status.to_string()),
            }
        })
    }

    /// Prints every step that was done, with its time.
    pub(crate) fn summary(&self) {
        println!("\n=== summary");
        for (name, took) in &self.done {
            println!("  ok {:>7.1} s  {name}", took.as_secs_f64());
        }
        println!("     {:>7.1} s  in all", self.began.elapsed().as_secs_f64());
    }
}

fn split(line: &str) -> Vec<String> {
    line.split('\'')
        .enumerate()
        .flat_map(|(index, part)| match index % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_parts_stay_whole() {
        assert_eq!(split("a -E 'b (c)' d"), ["a", "-E", "b (c)", "d"]);
    }
}
