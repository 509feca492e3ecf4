//! The URL of a store that is a file.

use std::path::PathBuf;

use super::{Query, decode};
use crate::error::Error;

const SCHEME: &str = "sqlite:";
const FORMS: &str =
    "allowed are sqlite:path, sqlite:/path and sqlite:///path, with what is behind a `?`";

/// A file, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) path: PathBuf,
    /// The table that is shared with programs of another library.
    pub(crate) table: Option<String>,
}

/// The file that a URL names, with its other parameters; `None` if it is the URL of something else.
pub(crate) fn parse(url: &str) -> Option<Result<(File, Query), Error>> {
    let scheme = url.get(..SCHEME.len())?;
    let rest = &url[SCHEME.len()..];
    scheme
        .eq_ignore_ascii_case(SCHEME)
        .then(|| parse_rest(rest))
}

fn parse_rest(rest: &str) -> Result<(File, Query), Error> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if rest.contains('#') {
        return Err(Error::input(
            "the URL has a fragment: write `#` in a path as %23",
        ));
    }
    let path = match path.strip_prefix("//") {
        Some(local) if local.starts_with('/') => local,
        Some(_) => {
            return Err(Error::input(format!(
                "a file has no host: write sqlite:path, or three slashes before an absolute path; {FORMS}"
            )));
        }
        None => path,
    };
    let path = decode(path, "path")?;
    if path.is_empty() || path.ends_with('/') {
        return Err(Error::input(format!("the URL names no file; {FORMS}")));
    }
    if path == "~" || path.starts_with("~/") {
        return Err(Error::input(
            "only a shell knows what `~` is, and here it does not see it: write the home directory out",
        ));
    }
    if path.starts_with(':') {
        return Err(Error::input(
            "a database in memory is nobody else's: `memory:` gives locks within this process",
        ));
    }
    let file = File {
        path: path.into(),
        table: None,
    };
    Ok((file, Query::parse_for_file(query)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_understood() {
        for (url, path) in [
            ("sqlite:locks.db", "locks.db"),
            ("sqlite:a/b%20c.db?prefix=x", "a/b c.db"),
            ("SQLite:/var/lib/locks.db", "/var/lib/locks.db"),
            ("sqlite:///var/lib/locks.db?table=t", "/var/lib/locks.db"),
            ("sqlite:50%25%3F.db", "50%?.db"),
        ] {
            let (file, _) = parse(url).unwrap().unwrap();
            assert_eq!(file.path, PathBuf::from(path), "{url}");
        }
        let (file, query) = parse("sqlite:a?table=t&label=me").unwrap().unwrap();
        assert_eq!(file.path, PathBuf::from("a"));
        assert_eq!(
            (query.table.as_deref(), query.label.as_deref()),
            (Some("t"), Some("me"))
        );
        for url in ["redis://h", "sqlit", "", "sqlites:x", "memory:", "ä"] {
            assert!(parse(url).is_none(), "{url}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (url, says) in [
            ("sqlite:", "names no file"),
            ("sqlite:a/", "names no file"),
            ("sqlite://host/a", "three slashes"),
            ("sqlite://a.db", "three slashes"),
            ("sqlite::memory:", "`memory:`"),
            ("sqlite:~/x", "write the home directory out"),
            ("sqlite:a#b", "%23"),
            ("sqlite:%zz", "%25"),
            (
                "sqlite:a?db=1",
                "allowed are prefix, label, reply_limit, table",
            ),
        ] {
            let error = parse(url).unwrap().unwrap_err();
            assert!(error.to_string().contains(says), "{url}: {error}");
        }
    }
}
