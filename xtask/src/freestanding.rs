//! The core in a program without a standard library: built, run, looked at, and the control that must not build.

use std::path::Path;
use std::process::Command;

/// Builds and runs `freestanding/` without an allocator and with one, then with the standard library, which must fail.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        println!(
            "this machine is not Linux on x86-64: the program without a system library cannot run here"
        );
        return Ok(());
    }
    for (features, what) in [
        ("", "a lease and the codec, no allocator"),
        ("alloc", "many leases on a connection"),
    ] {
        build(root, features).map_err(|log| format!("{what}: it does not build\n{log}"))?;
        let program = root.join("target/freestanding/release/freestanding");
        let status = Command::new(&program)
            .status()
            .map_err(|error| format!("{what}: it does not start: {error}"))?;
        if !status.success() {
            return Err(format!(
                "{what}: it ended with {status}; the number is that of the step in freestanding/src"
            ));
        }
        let text = text_size(&program)?;
        println!("{what}: runs, {text} bytes of code and constants");
    }
    match build(root, "control") {
        Err(log) if log.contains("E0152") => {
            println!("the control, with the standard library: does not build, as it must");
            Ok(())
        }
        Err(log) => Err(format!(
            "the control fails for another reason than the standard library:\n{log}"
        )),
        Ok(()) => Err(
            "the control builds: the program does not notice a standard library any more"
                .to_owned(),
        ),
    }
}

fn build(root: &Path, features: &str) -> Result<(), String> {
    let output = Command::new("cargo")
        .args([
            "build",
            "--quiet",
            "--release",
            "--manifest-path",
            "freestanding/Cargo.toml",
        ])
        .args([
            "--target-dir",
            "target/freestanding",
            "--features",
            features,
        ])
        .current_dir(root)
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTFLAGS")
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// What has to be loaded to run it, without symbols: the sizes of the loaded, unwritable parts of the file.
fn text_size(program: &Path) -> Result<u64, String> {
    let bytes = std::fs::read(program).map_err(|error| error.to_string())?;
    let number = |at: usize, len: usize| -> Option<u64> {
        let field = bytes.get(at..at + len)?;
        Some(
            field
                .iter()
                .rev()
                .fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        )
    };
    // An ELF file of 64 bits: the table of program headers is at 32, the size and number of its entries at 54 and 56.
    let sum = || -> Option<u64> {
        let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        (0..count).try_fold(0, |sum, index| {
            let header = usize::try_from(table + index * size).ok()?;
            let (kind, flags, in_file) = (
                number(header, 4)?,
                number(header + 4, 4)?,
                number(header + 32, 8)?,
            );
            let (load, writable) = (1, 2);
            Some(if kind == load && flags & writable == 0 {
                sum + in_file
            } else {
                sum
            })
        })
    };
    sum().ok_or_else(|| "the program is no ELF file".to_owned())
}
