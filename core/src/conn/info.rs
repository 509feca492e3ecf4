//! What a server says of itself.

use crate::resp::Value;

/// What the peer said of itself in the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerInfo {
    /// 3 after `HELLO 3`, 2 where that was refused.
    pub protocol: u8,
    /// Which server, if it said so.
    pub flavour: Flavour,
    /// Major and minor version, if it said so.
    pub version: Option<(u16, u16)>,
}

/// Which server is on the other side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flavour {
    /// Redis.
    Redis,
    /// Valkey.
    Valkey,
    /// It did not say, or said something else.
    #[default]
    Unknown,
}

/// Reads the reply of HELLO: a map, or the same pairs in an array.
pub(super) fn server_info(reply: &Value<'_>) -> ServerInfo {
    let mut info = ServerInfo {
        protocol: 3,
        ..ServerInfo::default()
    };
    let mut note = |key: Value<'_>, value: Value<'_>| match key.as_bytes() {
        Some(b"server") => {
            info.flavour = match value.as_bytes() {
                Some(b"redis") => Flavour::Redis,
                Some(b"valkey") => Flavour::Valkey,
                _ => Flavour::Unknown,
            };
        }
        Some(b"version") => info.version = value.as_bytes().and_then(version),
        Some(b"proto") => info.protocol = if value.as_int() == Some(2) { 2 } else { 3 },
        _ => {}
    };
    match reply {
        Value::Map(pairs) => pairs.iter().for_each(|(key, value)| note(key, value)),
        Value::Array(items) => {
            let mut items = items.iter();
            while let (Some(key), Some(value)) = (items.next(), items.next()) {
                note(key, value);
            }
        }
        _ => {}
    }
    info
}

/// `8.6.3` -> (8, 6)
fn version(text: &[u8]) -> Option<(u16, u16)> {
    let mut parts = core::str::from_utf8(text).ok()?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
