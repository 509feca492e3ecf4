//! What a server says about itself: `INFO`, `CONFIG GET`, `TIME`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tenure_core::time::Tick;

use crate::keys::{Dialect, Reply};
use crate::scan::matches;
use crate::server::{Mood, Server};

/// The settings somebody may ask for.
pub(crate) type Settings = BTreeMap<String, String>;

/// As a server has them that nobody has configured.
pub(crate) fn defaults() -> Settings {
    let settings = [
        ("appendonly", "no"),
        ("maxmemory-policy", "noeviction"),
        ("save", "3600 1 300 100 60 10000"),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    settings.into()
}

impl Server {
    /// `CONFIG GET name-or-pattern..`
    pub(crate) fn config_get(&self, wanted: &[Vec<u8>]) -> Reply {
        let mut found = BTreeMap::new();
        for wanted in wanted {
            let pattern = wanted.to_ascii_lowercase();
            let plain = !wanted.iter().any(|byte| b"*?[".contains(byte));
            for (name, value) in &self.settings {
                if matches(&pattern, name.as_bytes()) {
                    // A plain name comes back as it was spelled.
                    let spelled = match plain {
                        true => String::from_utf8_lossy(wanted).into_owned(),
                        false => name.clone(),
                    };
                    found.insert(name, (spelled, value.clone()));
                }
            }
        }
        Reply::Map(found.into_values().collect())
    }

    /// `INFO [section..]`: the lines that a client may look at.
    pub(crate) fn info(&self, wanted: &[Vec<u8>], now: Tick) -> Reply {
        let mut text = String::new();
        let sections = ["Server", "Memory", "Persistence", "Replication"];
        for section in sections {
            let all = ["default", "all", "everything"];
            let is_wanted = wanted.is_empty()
                || wanted.iter().any(|wanted| {
                    let mut names = all.iter().chain([&section]);
                    names.any(|name| wanted.eq_ignore_ascii_case(name.as_bytes()))
                });
            if !is_wanted {
                continue;
            }
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            let _ = write!(text, "# {section}\r\n");
            for (name, value) in self.lines(section, now) {
                let _ = write!(text, "{name}:{value}\r\n");
            }
        }
        Reply::Text(text)
    }

    fn lines(&self, section: &str, now: Tick) -> Vec<(&'static str, String)> {
        let setting = |name: &str| self.settings.get(name).cloned().unwrap_or_default();
        let flag = |is: bool| u8::from(is).to_string();
        match section {
            "Server" => {
                let uptime = now.saturating_since(self.started).as_secs().to_string();
                let mut lines = match self.dialect {
                    Dialect::Redis7 => vec![("redis_version", "7.0.15".to_owned())],
                    Dialect::Redis8 => vec![("redis_version", "8.6.3".to_owned())],
                    // For clients that look at the version of Redis and know nothing else.
                    Dialect::Valkey8 | Dialect::Valkey9 => vec![
                        ("redis_version", "7.2.4".to_owned()),
                        ("server_name", "valkey".to_owned()),
                        ("valkey_version", self.version().to_owned()),
                    ],
                };
                let mode = match self.dialect {
                    Dialect::Redis7 | Dialect::Redis8 => "redis_mode",
                    Dialect::Valkey8 | Dialect::Valkey9 => "server_mode",
                };
                lines.push((mode, "standalone".to_owned()));
                lines.push(("run_id", format!("{:040x}", self.run_id())));
                lines.push(("uptime_in_seconds", uptime));
                lines
            }
            "Memory" => vec![("maxmemory_policy", setting("maxmemory-policy"))],
            "Persistence" => vec![
                ("loading", flag(self.mood == Mood::Loading)),
                ("rdb_last_bgsave_status", "ok".to_owned()),
                ("aof_enabled", flag(setting("appendonly") == "yes")),
                ("aof_last_write_status", "ok".to_owned()),
            ],
            _ => match self.mood {
                Mood::ReadOnly => vec![
                    ("role", "slave".to_owned()),
                    ("master_link_status", "up".to_owned()),
                ],
                Mood::MasterDown => vec![
                    ("role", "slave".to_owned()),
                    ("master_link_status", "down".to_owned()),
                ],
                _ => vec![
                    ("role", "master".to_owned()),
                    ("connected_slaves", "0".to_owned()),
                ],
            },
        }
    }

    /// `TIME`: seconds and microseconds.
    pub(crate) fn time(&self, now: Tick) -> Reply {
        let micros = self.clock.read(now);
        let parts = [micros / 1_000_000, micros % 1_000_000];
        Reply::Many(
            parts
                .map(|part| Reply::Bulk(part.to_string().into_bytes()))
                .into(),
        )
    }

    /// Another one for every server, and every time it starts.
    fn run_id(&self) -> u128 {
        let seed = u128::from(self.number) << 64 | u128::from(self.starts);
        (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Clock;

    #[test]
    fn what_a_server_says_of_itself_is_as_it_is() {
        let clock = Clock::new(Tick::ZERO, Duration::ZERO, 0);
        let mut server = Server::new(Dialect::Valkey9, clock);
        let now = Tick::ZERO + Duration::from_secs(70);
        let said = |server: &Server, line: &str| match server.info(&[], now) {
            Reply::Text(text) => text.lines().any(|said| said == line),
            _ => false,
        };
        for line in [
            "role:master",
            "aof_enabled:0",
            "loading:0",
            "uptime_in_seconds:70",
        ] {
            assert!(said(&server, line), "{line}");
        }
        server
            .settings
            .insert("appendonly".to_owned(), "yes".to_owned());
        assert!(said(&server, "aof_enabled:1"));
        server.mood = Mood::ReadOnly;
        assert!(said(&server, "role:slave"));
        server.mood = Mood::MasterDown;
        assert!(said(&server, "master_link_status:down"));
        let before = server.run_id();
        server.starts += 1;
        assert_ne!(server.run_id(), before);
    }
}
