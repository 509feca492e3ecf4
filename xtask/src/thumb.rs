//! The core for a microcontroller: `thumbv7em-none-eabihf`, a Cortex-M4 with a floating-point unit.
//!
//! Only stable is needed for anything else here; this needs the nightly compiler, and the source of the standard library,
//! since no compiled one for this target is at hand everywhere.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "thumbv7em-none-eabihf";
const SOURCE: &str = "TENURE_RUST_SRC";

/// Builds the core with an allocator and without one.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let library = library()?;
    for (features, parts, what) in [
        ("", "core", "a lease and the codec, no allocator"),
        ("alloc", "core,alloc", "many leases on a connection"),
    ] {
        let status = Command::new("cargo")
            .args([
                "+nightly",
                "build",
                "--quiet",
                "--release",
                "-p",
                "tenure-core",
            ])
            .args(["--no-default-features", "--features", features])
            .args(["--target", TARGET, "--target-dir", "target/thumb"])
            .arg(format!("-Zbuild-std={parts}"))
            .current_dir(root)
            .env_remove("CARGO_TARGET_DIR")
            .env("__CARGO_TESTS_ONLY_SRC_ROOT", &library)
            .status()
            .map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("{what}: it does not build for {TARGET}"));
        }
        println!("{what}: builds for {TARGET}");
    }
    Ok(())
}

/// The `library` folder of the source.
fn library() -> Result<PathBuf, String> {
    if let Some(folder) = env::var_os(SOURCE) {
        return Ok(folder.into());
    }
    let output = Command::new("rustc")
        .args(["+nightly", "--print", "sysroot"])
        .output();
    let output = output.map_err(|error| error.to_string())?;
    let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let folder = Path::new(&sysroot).join("lib/rustlib/src/rust/library");
    match folder.is_dir() {
        true => Ok(folder),
        false => Err(format!(
            "this needs nightly and the source of its standard library: `rustup +nightly component add rust-src`, or set \
             {SOURCE} to the folder `library` of a Rust source of about the same version, such as that of Debian's rust-src"
        )),
    }
}
