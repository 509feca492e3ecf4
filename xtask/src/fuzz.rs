//! The corpus of the fuzz targets, run on the stable compiler as plain tests.

use std::path::Path;
use std::process::{Command, Stdio};

/// Builds `fuzz/` without libFuzzer, checks its format, and runs every file of the corpus.
pub(crate) fn replay(root: &Path) -> Result<(), String> {
    let lines = [
        "fmt --manifest-path fuzz/Cargo.toml --check",
        "clippy --manifest-path fuzz/Cargo.toml --target-dir target/fuzz --no-default-features --all-targets -- -D warnings",
        "test --manifest-path fuzz/Cargo.toml --target-dir target/fuzz --no-default-features --test replay",
    ];
    for line in lines {
        let status = Command::new("cargo")
            .args(line.split(' '))
            .current_dir(root)
            .stdin(Stdio::null())
            .status()
            .map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("cargo {line}: {status}"));
        }
    }
    Ok(())
}
