//! One parser for the URLs of all servers. No message repeats a password.

pub(crate) mod file;
mod query;

use std::fmt;
use std::path::PathBuf;

use crate::binding::Endpoint;
use crate::error::Error;
pub(crate) use query::Query;

const DEFAULT_PORT: u16 = 6379;
const FORMS: &str = "allowed are redis://[user[:password]@]host[:port][/database], the same with valkey://, with \
    rediss:// or valkeys:// for TLS, redis+unix://[user[:password]@]/path[?db=database], and sqlite:PATH for a file";

/// Everything that a URL says.
#[derive(Clone, Debug)]
pub(crate) struct Url {
    pub(crate) target: Target,
    /// The scheme is that of TLS.
    pub(crate) tls: bool,
    pub(crate) query: Query,
}

impl Url {
    pub(crate) fn parse(url: &str) -> Result<Url, Error> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(without_slashes(url));
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if rest.contains('#') || query.contains('#') {
            return Err(Error::input(
                "the URL has a fragment: write `#` in a user or password as %23",
            ));
        }
        let kind = Scheme::of(scheme)?;
        if kind == Scheme::Tls && !cfg!(feature = "tls") {
            return Err(Error::input(format!(
                "`{scheme}://` is TLS, which is not built in: add the feature `tls` (of tenure, or of the crate for the \
                 runtime, such as tenure-tokio)"
            )));
        }
        if query.contains('@') && !rest.contains('@') {
            return Err(Error::input(
                "the URL has a `?` before its `@`: write `?` in a user or password as %3F, and `@` in a parameter as %40",
            ));
        }
        let target = |database| match kind {
            Scheme::Unix => Target::parse_unix(rest, database),
            Scheme::Plain | Scheme::Tls => Target::parse_tcp(rest, database),
        };
        // Before the query: where there is no host, what is behind the `?` may be the rest of a password.
        target(None)?;
        let query = Query::parse(query)?;
        let tls = kind == Scheme::Tls;
        if query.is_about_tls() && !tls {
            return Err(Error::input(
                "ca, cert, key and server_name are for TLS: write rediss:// or valkeys://",
            ));
        }
        let target = target(query.database)?;
        Ok(Url { target, tls, query })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Plain,
    Tls,
    Unix,
}

impl Scheme {
    fn of(scheme: &str) -> Result<Scheme, Error> {
        match scheme.to_ascii_lowercase().as_str() {
            "redis" | "valkey" => Ok(Scheme::Plain),
            "rediss" | "valkeys" => Ok(Scheme::Tls),
            "redis+unix" | "valkey+unix" => Ok(Scheme::Unix),
            _ if scheme.len() <= 32
                && scheme
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)) =>
            {
                Err(Scheme::unknown(scheme))
            }
            // Not a scheme, so it may be anything, a password included.
            _ => Err(Error::input(format!(
                "the URL has no valid scheme; {FORMS}"
            ))),
        }
    }

    fn unknown(scheme: &str) -> Error {
        Error::input(format!("the scheme `{scheme}` is not known; {FORMS}"))
    }
}

/// What is wrong with something that is neither `scheme://..` nor `sqlite:..`. Little of it may be repeated: `user:password` looks
/// like a scheme with a path.
fn without_slashes(url: &str) -> Error {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme);
    match scheme {
        Some(scheme) if scheme.to_ascii_lowercase().starts_with("sql") && is_word(scheme) => {
            Scheme::unknown(scheme)
        }
        None if looks_like_a_path(url) => Error::input(format!(
            "the URL has no scheme; did you mean sqlite:{url}? {FORMS}"
        )),
        _ => Error::input(format!("the URL has no scheme; {FORMS}")),
    }
}

/// A path of a few plain characters, and no password by itself: those seldom have both a slash, or an ending of a database, and
/// nothing that a path does not have.
fn looks_like_a_path(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-".contains(&b);
    let lower = text.to_ascii_lowercase();
    let ends = [".db", ".sqlite", ".sqlite3"];
    let is_path = ["/", "./", "../"]
        .iter()
        .any(|start| text.starts_with(start))
        || ends.iter().any(|end| lower.ends_with(end));
    is_path && text.len() <= 256 && text.bytes().all(plain)
}

/// What is short and plain, and so may be shown.
fn is_word(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphabetic() || b == b'_';
    !text.is_empty() && text.len() <= 32 && text.bytes().all(plain)
}

/// Where to connect, and as whom.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) endpoint: Endpoint,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: u32,
}

impl Default for Target {
    fn default() -> Target {
        Target {
            endpoint: Endpoint::Tcp {
                host: "localhost".to_owned(),
                port: DEFAULT_PORT,
            },
            user: None,
            password: None,
            database: 0,
        }
    }
}

impl Target {
    fn parse_tcp(rest: &str, of_query: Option<u32>) -> Result<Target, Error> {
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, path),
            None => (rest, ""),
        };
        if path.contains('@') {
            return Err(Error::input(
                "the URL has a `/` before its `@`: write `/` in a user or password as %2F, and `@` as %40",
            ));
        }
        let (user, password, address) = credentials(authority)?;
        let (host, port) = split_port(address)?;
        if host.is_empty() {
            return Err(Error::input(format!("the URL names no host; {FORMS}")));
        }
        let mut database = match path {
            "" => 0,
            path => parse_database(path)?,
        };
        if let Some(of_query) = of_query {
            if !path.is_empty() && of_query != database {
                return Err(Error::input(
                    "the URL names two databases, in its path and in its query",
                ));
            }
            database = of_query;
        }
        let host = decode(host, "host")?;
        Ok(Target {
            endpoint: Endpoint::Tcp { host, port },
            user,
            password,
            database,
        })
    }

    fn parse_unix(rest: &str, database: Option<u32>) -> Result<Target, Error> {
        let Some(slash) = rest.find('/') else {
            return Err(Error::input(format!(
                "the URL names no socket path; {FORMS}"
            )));
        };
        let (authority, path) = rest.split_at(slash);
        let (user, password, host) = credentials(authority)?;
        if !host.is_empty() {
            return Err(Error::input(format!(
                "a Unix socket has no host: write three slashes before the path; {FORMS}"
            )));
        }
        let path = PathBuf::from(decode(path, "path")?);
        Ok(Target {
            endpoint: Endpoint::Unix { path },
            user,
            password,
            database: database.unwrap_or(0),
        })
    }
}

type Credentials<'a> = (Option<String>, Option<String>, &'a str);

/// `user:password@address`, each part but the address optional.
fn credentials(authority: &str) -> Result<Credentials<'_>, Error> {
    // The last `@`: an unescaped one in a password is a common slip.
    let Some((login, address)) = authority.rsplit_once('@') else {
        return Ok((None, None, authority));
    };
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (login, None),
    };
    let part = |text: &str, what| -> Result<Option<String>, Error> {
        let text = decode(text, what)?;
        Ok((!text.is_empty()).then_some(text))
    };
    let user = part(user, "user")?;
    let password = password
        .map(|password| part(password, "password"))
        .transpose()?
        .flatten();
    if user.is_some() && password.is_none() {
        return Err(Error::input(
            "the URL names a user without a password: write user:password@, or :password@ for the default user",
        ));
    }
    Ok((user, password, address))
}

fn split_port(address: &str) -> Result<(&str, u16), Error> {
    let (host, port) = if let Some(rest) = address.strip_prefix('[') {
        let Some((host, after)) = rest.split_once(']') else {
            return Err(Error::input(
                "the URL has an IPv6 address without its closing bracket",
            ));
        };
        match after.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if after.is_empty() => (host, None),
            None => {
                return Err(Error::input(
                    "only a port may follow the closing bracket of an IPv6 address",
                ));
            }
        }
    } else {
        match address.split_once(':') {
            Some((host, port)) if !port.contains(':') => (host, Some(port)),
            Some(_) => {
                return Err(Error::input(
                    "an IPv6 address in a URL stands in brackets: [::1]",
                ));
            }
            None => (address, None),
        }
    };
    let port = match port {
        None | Some("") => DEFAULT_PORT,
        Some(text) => match text.parse::<u16>() {
            Ok(port) if port > 0 && text.bytes().all(|b| b.is_ascii_digit()) => port,
            _ => {
                return Err(Error::input(
                    "the port of the URL is out of range: from 1 to 65535",
                ));
            }
        },
    };
    Ok((host, port))
}

fn parse_database(text: &str) -> Result<u32, Error> {
    let digits = !text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(database) if digits => Ok(database),
        _ => Err(Error::input(
            "the database of the URL must be a number from 0 to 999999999",
        )),
    }
}

fn decode(text: &str, what: &str) -> Result<String, Error> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) => bytes.push((high * 16 + low) as u8),
            _ => {
                return Err(Error::input(format!(
                    "the {what} of the URL has a `%` that is not followed by two hexadecimal digits: write it as %25"
                )));
            }
        }
    }
    String::from_utf8(bytes)
        .map_err(|_| Error::input(format!("the {what} of the URL is not UTF-8")))
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("endpoint", &self.endpoint)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "<hidden>"))
            .field("database", &self.database)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp {
            host: host.to_owned(),
            port,
        }
    }

    fn parse(url: &str) -> Result<Target, Error> {
        Url::parse(url).map(|url| url.target)
    }

    #[test]
    fn every_form_is_understood() {
        let target = parse("redis://localhost").unwrap();
        assert_eq!(target, Target::default());
        let target = parse("valkey://us%3Aer:p%40s%2Fs%25@[::1]:6380/12").unwrap();
        assert_eq!(target.endpoint, tcp("::1", 6380));
        assert_eq!(target.user.as_deref(), Some("us:er"));
        assert_eq!(target.password.as_deref(), Some("p@s/s%"));
        assert_eq!(target.database, 12);
        let target = parse("REDIS://:secret@db:7000/").unwrap();
        assert_eq!(
            (target.user, target.password.as_deref()),
            (None, Some("secret"))
        );
        let target = parse("redis+unix://u:p@/run/a%20b.sock?db=3").unwrap();
        assert_eq!(
            target.endpoint,
            Endpoint::Unix {
                path: "/run/a b.sock".into()
            }
        );
        assert_eq!((target.user.as_deref(), target.database), (Some("u"), 3));
        assert_eq!(parse("redis://h?db=4").unwrap().database, 4);
        assert_eq!(
            parse("valkey+unix:///s").unwrap(),
            parse("redis+unix:///s").unwrap()
        );
    }

    #[cfg(feature = "tls")]
    #[test]
    fn the_schemes_of_tls_are_those_with_an_s() {
        for (url, tls) in [
            ("redis://h", false),
            ("valkey://h", false),
            ("RedisS://h?ca=x", true),
            ("valkeys://u:p@h:1/2?server_name=x", true),
        ] {
            assert_eq!(Url::parse(url).unwrap().tls, tls);
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_scheme_of_tls_says_which_feature_is_missing() {
        for url in ["rediss://u:hunter2@h", "valkeys://u:hunter2@h?ca=x"] {
            let shown = Url::parse(url).unwrap_err().to_string();
            assert!(shown.contains("feature `tls`") && !shown.contains("hunter2"));
        }
    }

    #[test]
    fn what_is_wrong_is_said_and_no_password_shows() {
        for (url, says) in [
            ("hunter2", "has no scheme"),
            ("http://hunter2@h", "`http` is not known"),
            ("hunter2@h:1://x", "no valid scheme"),
            ("sqllite://x", "`sqllite` is not known; allowed are"),
            ("sqllite:hunter2", "`sqllite` is not known; allowed are"),
            ("http://h", "sqlite:PATH"),
            ("/tmp/x.db", "did you mean sqlite:/tmp/x.db?"),
            ("x.db", "did you mean sqlite:x.db?"),
            ("hunter2:x", "has no scheme"),
            ("user:hunter2/x.db", "has no scheme"),
            ("/hunter2@h/x.db", "has no scheme"),
            ("sqlhunter2:x", "has no scheme"),
            ("redis://", "names no host"),
            ("redis://u:hunter2@", "names no host"),
            ("redis://hunter2@h", "without a password"),
            ("redis://u:hunter2%2@h", "%25"),
            ("redis://u:hunter2@h:0", "from 1 to 65535"),
            ("redis://u:hunter2@h:65536", "from 1 to 65535"),
            ("redis://u:hunter2@h:+1", "from 1 to 65535"),
            ("redis://u:hunter2@::1", "in brackets"),
            ("redis://u:hunter2@[::1", "closing bracket"),
            ("redis://u:hunter2@h/x", "must be a number"),
            ("redis://u:hun/hunter2@h", "%2F"),
            ("redis://u:hunter2@h/1?db=2", "two databases"),
            ("redis://u:hunter2@h/1?hunter2=2", "query parameter 1 of"),
            ("redis://u:p@?hunter=2@h", "names no host"),
            ("redis://u:hunt?hunter=2", "from 1 to 65535"),
            ("redis://u:p@h?hunter=2@h", "query parameter 1 of"),
            ("redis://h?tabel=2", "query parameter `tabel` of"),
            ("redis://u:hunt?er2hunter2@h", "%3F"),
            ("redis://u:hunter2@h?ca=/x", "write rediss://"),
            ("redis+unix://u:hunter2@/x?server_name=x", "write rediss://"),
            ("redis://u:hunter2#@h", "%23"),
            ("redis+unix://u:hunter2@run/x", "no host"),
            ("redis+unix://u:hunter2@", "no socket path"),
        ] {
            let error = Url::parse(url).unwrap_err();
            let (shown, debug) = (error.to_string(), format!("{error:?}"));
            assert!(shown.contains(says), "{url}: {shown}");
            assert!(
                !shown.contains("hunter") && !debug.contains("hunter"),
                "{url}: {shown}"
            );
            assert!(!error.is_retryable());
        }
    }

    #[test]
    fn debug_hides_the_password() {
        let target = parse("redis://u:hunter2@h").unwrap();
        assert!(!format!("{target:?}").contains("hunter2"));
    }
}
