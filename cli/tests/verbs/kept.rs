//! Texts that are kept in files and compared byte for byte. `TENURE_REWRITE=1` writes them anew, with one test at a time.

use std::fs;
use std::path::{Path, PathBuf};

const VARIABLE: &str = "TENURE_REWRITE";

/// Compares with a whole file of this crate's tests.
pub(crate) fn file(path: &str, text: &str) {
    let path = crate_folder().join("tests").join(path);
    if is_rewriting() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(kept, text, "{} is not this any more", path.display());
}

/// Compares with the block of a document that follows `<!-- name -->`.
pub(crate) fn block(document: &str, name: &str, text: &str) {
    let path = crate_folder().join("../docs").join(document);
    let kept = fs::read_to_string(&path).unwrap();
    let mark = format!("<!-- {name} -->\n```text\n");
    let (before, rest) = kept.split_once(&mark).expect(&mark);
    let (block, after) = rest.split_once("```\n").expect(&mark);
    if is_rewriting() {
        fs::write(&path, format!("{before}{mark}{text}```\n{after}")).unwrap();
    } else {
        assert_eq!(block, text, "{name} in {document} is not this any more");
    }
}

fn is_rewriting() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| !value.is_empty())
}

fn crate_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
