//! Every form of a URL, on every server: where it leads, as whom, and with which settings.

use std::time::Duration;

use tenure_tests::{Client, Failure, Server, ServerKind, Tenure};

type Outcome = Result<(), Failure>;

const NAME: &str = "orders";
const MINUTE: Duration = Duration::from_secs(60);
/// Everything that a URL gives a meaning to, and more.
const USER: &str = "us:er@/?#[]%25&=+;";
const PASSWORD: &str = "p:a@s/s?w#o%r&d=+;\"'ü ";
const PREFIX: &str = "bill ing/?#%2F&=+ä:";
const CLIENT_NAME: &str = "web-1:a%20&b=c+d?#/";

fn escape(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Holds and releases by this URL; the key is there in between, in this database.
fn lives(server: &Server, url: &str, database: &str, key: &str) -> Result<Client, Failure> {
    let mut client = server.client()?;
    client.ok(&["SELECT", database])?;
    let tenure = Tenure::connect(url, "me").map_err(|error| format!("{url}: {error}"))?;
    let lock = tenure.hold(NAME, MINUTE)?;
    assert!(client.exists(key)?, "{url}: {:?}", client.keys()?);
    tenure.wait(lock.renew_now())??;
    tenure.release(lock)?;
    assert!(!client.exists(key)?);
    Ok(client)
}

#[test]
fn each_form_leads_where_it_says() -> Outcome {
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &["--bind", "127.0.0.1", "::1"])?;
        let (port, path) = (server.port(), server.socket_path());
        let path = path.display();
        for (url, database) in [
            (format!("redis://127.0.0.1:{port}"), "0"),
            (format!("valkey://localhost:{port}/"), "0"),
            (format!("redis://[::1]:{port}/3"), "3"),
            (format!("VALKEY://127.0.0.1:{port}?db=4"), "4"),
            (format!("redis+unix://{path}"), "0"),
            (format!("valkey+unix://{path}?db=5"), "5"),
        ] {
            lives(&server, &url, database, "lock:orders")?;
        }
    }
    Ok(())
}

#[test]
fn whatever_is_in_a_user_a_password_a_prefix_or_a_name_arrives() -> Outcome {
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &[])?;
        let password = format!(">{PASSWORD}");
        let words = [
            "ACL", "SETUSER", USER, "reset", "on", &password, "~*", "+@all",
        ];
        server.client()?.ok(&words)?;
        let login = format!("{}:{}", escape(USER), escape(PASSWORD));
        let query = format!(
            "prefix={}&client_name={}",
            escape(PREFIX),
            escape(CLIENT_NAME)
        );
        let port = server.port();
        let path = server.socket_path();
        for url in [
            format!("redis://{login}@127.0.0.1:{port}/2?{query}"),
            format!("redis+unix://{login}@{}?{query}&db=2", path.display()),
        ] {
            let tenure = Tenure::connect(&url, "me")?;
            let mut client = lives(&server, &url, "2", &format!("{PREFIX}{NAME}"))?;
            let list = client.ok(&["CLIENT", "LIST"])?.text();
            let field = format!(" name={CLIENT_NAME} ");
            assert!(list.contains(&field), "{list}");
            assert!(list.contains(&format!(" user={USER} ")), "{list}");
            assert!(!format!("{tenure:?}").contains(PASSWORD));
        }
    }
    Ok(())
}

#[test]
fn the_limits_of_a_url_hold() -> Outcome {
    let kinds = ServerKind::all_required();
    let server = Server::start(*kinds.first().ok_or("no server")?, &[])?;
    server.freeze()?;
    let port = server.port();
    // It accepts, as the kernel does that for it, and says nothing.
    let url = format!("redis://127.0.0.1:{port}?connect_limit=100ms");
    let begun = std::time::Instant::now();
    let error = Tenure::connect(&url, "me").unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(4), "{error}");
    for (query, says) in [
        ("connect_limit=0s", "connect limit"),
        ("reply_limit=301s", "reply limit"),
        ("reconnect_limit=6m", "reconnect limit"),
        ("client_name=a%20b", "client name"),
        ("prefix=%7B", "prefix"),
    ] {
        let url = format!("redis://127.0.0.1:{port}?{query}");
        let shown = Tenure::connect(&url, "me").unwrap_err().to_string();
        assert!(shown.contains(says), "{query}: {shown}");
    }
    Ok(())
}
