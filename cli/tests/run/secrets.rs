//! What nobody may read who can look at the processes, the messages or the events.

use crate::harness::{Marks, Redis, Tenure};
use crate::statuses::holder;

/// Of no other process on this machine, unlike that of a server which gets one on its command line.
const PASSWORD: &str = "pa55-nobody-else-has";

#[test]
fn no_password_no_url_and_no_token_is_shown_anywhere() {
    let redis = Redis::start();
    let mut client = redis.0.client().unwrap();
    client.config_set("requirepass", PASSWORD).unwrap();
    let socket = redis.0.socket_path().display().to_string();
    let url = format!("redis+unix://:{PASSWORD}@{socket}");
    let marks = Marks::new();
    let events = marks.text("events");
    // The command lines of all processes there are, and its own environment.
    let script =
        r#"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' '; echo; echo "environment:"; env"#;
    let words = [
        "a",
        "--verbose",
        "--fenced",
        "--events",
        &events,
        "sh",
        "-c",
        script,
    ];
    let output = Tenure::with_url(&url, &words).output();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let (lines, environment) = said.split_once("environment:").unwrap();
    assert!(lines.contains("tenure run a --verbose"), "{lines}");
    let token = environment
        .lines()
        .find_map(|line| line.strip_prefix("TENURE_TOKEN="));
    let token = token.expect("its own capability").to_owned();
    let (secret, _) = token.rsplit_once('.').unwrap();
    let (_, secret) = secret.rsplit_once('.').unwrap();
    assert!(
        !environment.contains(PASSWORD) && !environment.contains(&socket),
        "{environment}"
    );

    let mut shown = vec![
        lines.to_owned(),
        String::from_utf8(output.stderr).unwrap(),
        marks.read("events"),
    ];
    let store = WithPassword(&redis, url.clone());
    let holder = holder(&store, "a");
    for words in [
        &["run", "a", "--verbose", "true"][..],
        &["run", "a", "-w", "300ms", "true"],
        &["status", "a"],
        &["list", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["release", "a", "--force"],
        &["run", "--no-such-option"],
        &["run", "a", "--help"],
        &["list", "--help"],
    ] {
        let output = Tenure::bare(words).env("TENURE_STORE", &url).output();
        shown.push(String::from_utf8(output.stdout).unwrap());
        shown.push(String::from_utf8(output.stderr).unwrap());
    }
    drop(holder);
    for text in shown {
        for hidden in [PASSWORD, secret, "tn1:"] {
            assert!(!text.contains(hidden), "{hidden} in {text}");
        }
    }
}

/// A server that wants a password of those who come by its URL.
struct WithPassword<'a>(&'a Redis, String);

impl crate::harness::Store for WithPassword<'_> {
    fn url(&self) -> String {
        self.1.clone()
    }

    fn left(&self, name: &str) -> Option<std::time::Duration> {
        let output = Tenure::bare(&["status", name, "--json"])
            .env("TENURE_STORE", &self.1)
            .output();
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (said["held"] == true).then_some(std::time::Duration::ZERO)
    }

    fn delete(&self, name: &str) {
        self.0.delete(name);
    }

    fn replace(&self, name: &str) {
        self.0.replace(name);
    }

    fn freeze(&self) {
        self.0.freeze();
    }

    fn thaw(&self) {
        self.0.thaw();
    }
}
