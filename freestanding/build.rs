//! Links without start files, without a C library, statically.

fn main() {
    for argument in [
        "-nostartfiles",
        "-nostdlib",
        "-nodefaultlibs",
        "-static",
        "-no-pie",
    ] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
