//! Every file of the corpus through its target: without nightly, without instrumentation.

use std::fs;
use std::path::Path;

fn replay(target: &str, function: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .expect("a corpus")
        .map(|entry| entry.expect("a file").path())
        .collect();
    files.sort();
    assert!(files.len() >= 10, "{target} has lost its corpus");
    for file in &files {
        // The name comes first: a panic says the rest.
        println!("{}", file.display());
        function(&fs::read(file).expect("a file that can be read"));
    }
    println!("{target}: {} inputs", files.len());
}

#[test]
fn decode() {
    replay("decode", tenure_fuzz::decode);
}

#[test]
fn chunks() {
    replay("chunks", tenure_fuzz::chunks);
}

#[test]
fn conn_ops() {
    replay("conn_ops", tenure_fuzz::conn_ops);
}

#[test]
fn lease_ops() {
    replay("lease_ops", tenure_fuzz::lease_ops);
}

#[test]
fn world() {
    replay("world", tenure_fuzz::world);
}
