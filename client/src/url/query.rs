//! What stands behind the `?` of a URL.

use std::path::PathBuf;
use std::time::Duration;

use super::{decode, is_word, parse_database};
use crate::error::Error;

/// The parameters of a URL, as far as it has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    pub(crate) database: Option<u32>,
    pub(crate) prefix: Option<String>,
    pub(crate) client_name: Option<String>,
    pub(crate) connect_limit: Option<Duration>,
    pub(crate) reply_limit: Option<Duration>,
    pub(crate) reconnect_limit: Option<Duration>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) server_name: Option<String>,
    pub(crate) label: Option<String>,
    pub(crate) table: Option<String>,
}

const ALLOWED: &str = "allowed are db, prefix, client_name, connect_limit, reply_limit, reconnect_limit, and with \
    rediss:// or valkeys:// ca, cert, key, server_name";
const ALLOWED_FOR_FILES: &str = "allowed are prefix, label, reply_limit, table";

impl Query {
    /// Each parameter at most once, and none that is not known: one that is misspelt would be left out, and nobody would see
    /// it. What is not known is counted, and repeated only if it is a plain word with a value: else it may be the rest of a password.
    pub(crate) fn parse(text: &str) -> Result<Query, Error> {
        let query = Query::parse_with(text, Query::field, ALLOWED)?;
        if query.cert.is_some() != query.key.is_some() {
            return Err(Error::input(
                "the URL has only one of cert and key: a client certificate needs both files",
            ));
        }
        Ok(query)
    }

    /// The parameters of a store that is a file.
    pub(crate) fn parse_for_file(text: &str) -> Result<Query, Error> {
        Query::parse_with(text, Query::field_for_file, ALLOWED_FOR_FILES)
    }

    fn parse_with(
        text: &str,
        field: for<'a> fn(&'a mut Query, &str) -> Option<Field<'a>>,
        allowed: &str,
    ) -> Result<Query, Error> {
        let mut query = Query::default();
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        for (place, pair) in (1..).zip(pairs) {
            let (name, value) = match pair.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (pair, None),
            };
            let field = field(&mut query, name).ok_or_else(|| {
                let which = match is_word(name) && value.is_some() && !text.contains('@') {
                    true => format!("`{name}`"),
                    false => place.to_string(),
                };
                Error::input(format!(
                    "query parameter {which} of the URL is not known; {allowed}"
                ))
            })?;
            let Some(value) = value else {
                return Err(Error::input(format!(
                    "the URL gives `{name}` no value: write {name}=.."
                )));
            };
            field.set(name, value)?;
        }
        Ok(query)
    }

    fn field(&mut self, name: &str) -> Option<Field<'_>> {
        Some(match name {
            "db" => Field::Database(&mut self.database),
            "prefix" => Field::Text(&mut self.prefix),
            "client_name" => Field::Text(&mut self.client_name),
            "connect_limit" => Field::Span(&mut self.connect_limit),
            "reply_limit" => Field::Span(&mut self.reply_limit),
            "reconnect_limit" => Field::Span(&mut self.reconnect_limit),
            "ca" => Field::File(&mut self.ca),
            "cert" => Field::File(&mut self.cert),
            "key" => Field::File(&mut self.key),
            "server_name" => Field::Text(&mut self.server_name),
            _ => return None,
        })
    }

    fn field_for_file(&mut self, name: &str) -> Option<Field<'_>> {
        Some(match name {
            "prefix" => Field::Text(&mut self.prefix),
            "label" => Field::Text(&mut self.label),
            "reply_limit" => Field::Span(&mut self.reply_limit),
            "table" => Field::Text(&mut self.table),
            _ => return None,
        })
    }

    /// Whether it says how to do TLS.
    pub(crate) fn is_about_tls(&self) -> bool {
        self.ca.is_some() || self.cert.is_some() || self.key.is_some() || self.server_name.is_some()
    }
}

/// A parameter, by what its value is.
enum Field<'a> {
    Database(&'a mut Option<u32>),
    Text(&'a mut Option<String>),
    File(&'a mut Option<PathBuf>),
    Span(&'a mut Option<Duration>),
}

impl Field<'_> {
    fn set(self, name: &str, value: &str) -> Result<(), Error> {
        match self {
            Field::Database(slot) => once(slot, name, parse_database(value)?),
            Field::Text(slot) => once(slot, name, decode(value, name)?),
            Field::Span(slot) => once(slot, name, span(name, value)?),
            Field::File(slot) => {
                let path = decode(value, name)?;
                if path.is_empty() {
                    return Err(Error::input(format!(
                        "the URL gives `{name}` no value: write the path of a file"
                    )));
                }
                once(slot, name, path.into())
            }
        }
    }
}

fn once<T>(slot: &mut Option<T>, name: &str, value: T) -> Result<(), Error> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::input(format!("the URL gives `{name}` twice"))),
    }
}

/// A whole number and its unit. Whether the limit may be so long is checked where all limits are.
fn span(name: &str, value: &str) -> Result<Duration, Error> {
    let digits = value.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = value.split_at(digits);
    let number = number.parse::<u32>().ok().map(u64::from);
    let span = match (number, unit) {
        (Some(number), "ms") => Some(Duration::from_millis(number)),
        (Some(number), "s") => Some(Duration::from_secs(number)),
        (Some(number), "m") => Some(Duration::from_secs(number * 60)),
        _ => None,
    };
    span.ok_or_else(|| {
        Error::input(format!(
            "the `{name}` of the URL must be a whole number with its unit, ms, s or m: 250ms, 5s, 1m"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_is_understood() {
        let query = Query::parse(
            "db=3&prefix=a%3Ab%26c%3D%2B+&client_name=web%2D1&connect_limit=250ms&reply_limit=5s&reconnect_limit=1m&\
             ca=/etc/a%20b.pem&cert=c.pem&key=k.pem&server_name=redis.internal",
        )
        .unwrap();
        assert_eq!(query.database, Some(3));
        // A plus is a plus.
        assert_eq!(query.prefix.as_deref(), Some("a:b&c=++"));
        assert_eq!(query.client_name.as_deref(), Some("web-1"));
        assert_eq!(query.connect_limit, Some(Duration::from_millis(250)));
        assert_eq!(query.reply_limit, Some(Duration::from_secs(5)));
        assert_eq!(query.reconnect_limit, Some(Duration::from_secs(60)));
        assert_eq!(query.ca, Some("/etc/a b.pem".into()));
        assert_eq!(query.cert, Some("c.pem".into()));
        assert_eq!(query.key, Some("k.pem".into()));
        assert_eq!(query.server_name.as_deref(), Some("redis.internal"));
        assert!(query.is_about_tls());
        assert!(!Query::parse("").unwrap().is_about_tls());
        assert_eq!(Query::parse("&db=1&").unwrap().database, Some(1));
    }

    #[test]
    fn a_file_has_parameters_of_its_own() {
        let query = Query::parse_for_file("prefix=a:&label=me&reply_limit=1s&table=t").unwrap();
        assert_eq!(
            (query.prefix.as_deref(), query.label.as_deref()),
            (Some("a:"), Some("me"))
        );
        assert_eq!(
            (query.reply_limit, query.table.as_deref()),
            (Some(Duration::from_secs(1)), Some("t"))
        );
        for (text, parse) in [
            ("db=1", Query::parse_for_file as fn(&str) -> _),
            ("table=t", Query::parse),
        ] {
            let error: Error = parse(text).unwrap_err();
            let (name, _) = text.split_once('=').unwrap();
            let says = format!("parameter `{name}` of the URL is not known");
            assert!(error.to_string().contains(&says), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_and_no_value_shows() {
        for (text, says) in [
            ("db=1&hunter2=2", "parameter 2"),
            ("hunter2", "allowed are db, prefix"),
            ("secret", "parameter 1 of"),
            ("hunter2hunter2hunter2hunter2hunter=1", "parameter 1 of"),
            ("DB=1", "parameter `DB`"),
            ("insecure=true", "is not known"),
            ("db=1&db=1", "`db` twice"),
            ("prefix=hunter2&prefix=hunter2", "`prefix` twice"),
            ("db=hunter2", "must be a number"),
            ("db", "`db` no value"),
            ("prefix=%zz", "%25"),
            ("prefix=%ff", "not UTF-8"),
            ("ca=", "`ca` no value"),
            ("cert=hunter2", "only one of cert and key"),
            ("key=hunter2", "only one of cert and key"),
            ("connect_limit=5", "ms, s or m"),
            ("connect_limit=hunter2", "ms, s or m"),
            ("connect_limit=-5s", "ms, s or m"),
            ("connect_limit=1.5s", "ms, s or m"),
            ("connect_limit=5h", "ms, s or m"),
            ("connect_limit=5%73", "ms, s or m"),
            ("connect_limit=99999999999s", "ms, s or m"),
        ] {
            let error = Query::parse(text).unwrap_err();
            let (shown, debug) = (error.to_string(), format!("{error:?}"));
            assert!(shown.contains(says), "{text}: {shown}");
            assert!(!shown.contains("hunter2") && !debug.contains("hunter2"));
            assert!(!error.is_retryable());
        }
    }
}
