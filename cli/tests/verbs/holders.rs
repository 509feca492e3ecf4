//! `status`, `list` and `release`.

use std::io::{Read as _, Write as _};
use std::process::Stdio;

use crate::harness::{
    MINUTE, bare, held, json, locks, on, on_each_server, said, said_to, server, terminal,
};
use tenure_tests::process::Folder;
use tenure_tests::{eventually, key_of};

#[test]
fn a_free_name_is_said_to_be_free() {
    on_each_server(|server| {
        let (status, out, err) = said(&mut on(&server.url(), &["status", "a"]));
        assert_eq!((status, &*err), (0, ""));
        assert_eq!(out, "Name:    a\nState:   free\n");
        let (status, value) = json(&mut on(&server.url(), &["status", "a"]));
        assert_eq!(status, 0);
        let wanted = serde_json::json!({"name": "a", "state": "free", "held": false});
        assert_eq!(value, wanted);
    });
}

#[test]
fn a_held_name_is_shown_with_its_holder() {
    on_each_server(|server| {
        let locks = locks(server, "web-1:4711");
        let request = locks.lock("a").lease(MINUTE).fenced();
        let lock = request.acquire().unwrap();
        let (status, out, err) = said(&mut on(&server.url(), &["status", "a"]));
        assert_eq!((status, &*err), (0, ""));
        let fence = lock.fence().unwrap();
        for part in [
            "Name:    a\nState:   held\nHolder:  web-1:4711\nSince:   20",
            " s left, unless it is renewed\n",
            &format!("Fence:   {fence}\n"),
            "tenure run --wait",
        ] {
            assert!(out.contains(part), "{part}: {out}");
        }
        assert!(!out.contains("Warning") && !out.contains("you"), "{out}");
        let (_, value) = json(&mut on(&server.url(), &["status", "a"]));
        assert_eq!(
            (&value["held"], &value["you"]),
            (&true.into(), &false.into())
        );
        assert_eq!(
            (&value["state"], &value["holder"]),
            (&"held".into(), &"web-1:4711".into())
        );
        assert_eq!(value["fence"], fence);
        let left = value["lease_left_ms"].as_u64().unwrap();
        assert!(left > 30_000 && left <= 60_000, "{left}");
        assert_eq!(value["warnings"], serde_json::json!([]));
    });
}

#[test]
fn a_command_is_told_that_it_is_the_holder_and_only_then() {
    let server = server();
    let (one, other) = (locks(&server, "one"), locks(&server, "two"));
    let lock = held(&one, "a");
    let token = lock.token().unwrap();
    let ask = |name: &str| {
        let mut status = on(&server.url(), &["status", name]);
        status
            .env("TENURE_NAME", "a")
            .env("TENURE_TOKEN", token.as_str());
        let (_, out, err) = said(&mut status);
        assert!(!out.contains(token.as_str()) && !err.contains(token.as_str()));
        out
    };
    assert!(ask("a").contains("Holder:  one (this is you)\n"));
    let _b = held(&one, "b");
    assert!(!ask("b").contains("you"));
    lock.release().unwrap();
    // It was lost, and is another's.
    let _again = held(&other, "a");
    assert!(!ask("a").contains("you"));
}

#[test]
fn what_is_odd_about_a_name_is_said_and_none_of_its_bytes() {
    let server = server();
    let mut client = server.client().unwrap();
    client.set(&key_of("a"), "\x1b[31msecret", None).unwrap();
    let (status, out, _) = said(&mut on(&server.url(), &["status", "a"]));
    assert_eq!(status, 0);
    for part in [
        "somebody unknown",
        "Lease:   without end",
        "Warning: the value is not one",
    ] {
        assert!(out.contains(part), "{out}");
    }
    assert!(!out.contains("secret") && !out.contains('\x1b'), "{out}");
    let (_, value) = json(&mut on(&server.url(), &["status", "a"]));
    assert_eq!(value["warnings"], serde_json::json!(["foreign", "endless"]));
    assert_eq!(value["holder"], serde_json::Value::Null);
}

#[test]
fn a_name_that_cools_down_is_not_held() {
    let server = server();
    let locks = locks(&server, "one");
    let request = locks
        .lock("a")
        .options(tenure::LockOptions::new().at_least(MINUTE));
    request.acquire().unwrap().release().unwrap();
    let (_, out, _) = said(&mut on(&server.url(), &["status", "a"]));
    assert!(
        out.contains("free soon") && out.contains("Free in: 5"),
        "{out}"
    );
    let (_, value) = json(&mut on(&server.url(), &["status", "a"]));
    assert_eq!(
        (&value["state"], &value["held"]),
        (&"cooling".into(), &false.into())
    );
}

#[test]
fn names_are_listed_in_aligned_columns() {
    on_each_server(|server| {
        let (status, out, err) = said(&mut on(&server.url(), &["list"]));
        assert_eq!((status, &*out, &*err), (0, "", "tenure: nothing is held\n"));
        let locks = locks(server, "web-1:4711");
        let _held = ["order:1", "order:\x1b[31m", "other"].map(|name| held(&locks, name));
        let (status, out, err) = said(&mut on(&server.url(), &["list", "order:"]));
        assert_eq!((status, &*err), (0, ""));
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.len(), 3, "{out}");
        let column = lines[0].find("HOLDER").unwrap();
        assert_eq!(&lines[1][..column], r"order:\x1b[31m  ");
        assert_eq!(&lines[2][..column], "order:1         ");
        assert!(lines[1][column..].starts_with("web-1:4711  "), "{out}");
        let (_, value) = json(&mut on(&server.url(), &["list"]));
        assert_eq!(value["more"], false);
        let names: Vec<&str> = value["locks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|lock| lock["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["order:\x1b[31m", "order:1", "other"]);
        let (_, out, err) = said(&mut on(&server.url(), &["list", "--limit", "1"]));
        assert_eq!(out.lines().count(), 2);
        assert!(err.contains("more than 1"), "{err}");
        let (_, value) = json(&mut on(&server.url(), &["list", "--limit", "1"]));
        assert_eq!(value["more"], true);
    });
}

#[test]
fn a_list_has_colours_only_where_they_are_wanted() {
    let server = server();
    let locks = locks(&server, "one");
    let _held = held(&locks, "a");
    let list = |words: &[&str]| {
        let words = [&["list"], words].concat();
        said(on(&server.url(), &words).env("NO_COLOR", "1")).1
    };
    assert!(!list(&[]).contains('\x1b'));
    assert!(!list(&["--color", "never"]).contains('\x1b'));
    assert!(list(&["--color", "always"]).starts_with("\x1b[1mNAME"));
}

#[test]
fn a_reader_that_has_enough_is_no_error() {
    let server = server();
    let locks = locks(&server, "one");
    let _held = held(&locks, "a");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut list = on(&server.url(), &["list"]);
    let output = list.stdout(writer).stderr(Stdio::piped());
    let output = output.spawn().unwrap().wait_with_output().unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!((signal, output.stderr), (Some(13), Vec::new()));
}

#[test]
fn whoever_has_the_token_frees_the_name() {
    on_each_server(|server| {
        let locks = locks(server, "one");
        let release = |token: &str| {
            let words = ["release", "a", "--token-env", "T"];
            let told = said(on(&server.url(), &words).env("T", token));
            assert!(
                !told.1.contains(token) && !told.2.contains(token),
                "{told:?}"
            );
            told
        };
        let lock = held(&locks, "a");
        let token = lock.token().unwrap();
        let (status, out, err) = release(token.as_str());
        assert_eq!((status, &*err), (0, ""));
        assert!(
            out.starts_with("`a`: removed the hold of one, held since 20"),
            "{out}"
        );
        assert!(eventually(MINUTE, || !lock.is_held()));
        // Nobody holds it with that token.
        let (status, out, _) = release(token.as_str());
        assert_eq!((status, &*out), (75, "`a` is free\n"));
        let again = held(&locks, "a");
        let (status, out, err) = release(token.as_str());
        assert_eq!((status, &*out), (75, "`a` was not freed\n"));
        assert!(err.contains("Holder:  one\n"), "{err}");
        assert!(again.is_held());
        let token = again.token().unwrap();
        let words = ["release", "a", "--token-stdin", "--json"];
        let input = format!("{}\n", token.as_str());
        let (status, out, err) = said_to(&mut on(&server.url(), &words), &input);
        assert_eq!((status, &*err), (0, ""));
        let value: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(
            (&value["freed"], &value["removed"]["holder"]),
            (&true.into(), &"one".into())
        );
    });
}

#[test]
fn without_a_terminal_force_is_the_consent() {
    on_each_server(|server| {
        let locks = locks(server, "one");
        let lock = held(&locks, "a");
        let (status, out, err) = said(&mut on(&server.url(), &["release", "a", "--force"]));
        assert_eq!(status, 0);
        assert!(out.starts_with("`a`: removed the hold of one"), "{out}");
        assert!(
            err.contains("Holder:  one\n") && !err.contains("yes"),
            "{err}"
        );
        assert!(eventually(MINUTE, || !lock.is_held()));
        let (status, out, err) = said(&mut on(&server.url(), &["release", "a", "--force"]));
        assert_eq!((status, &*out, &*err), (0, "`a` is free\n", ""));
        let (status, value) = json(&mut on(&server.url(), &["release", "a", "--force"]));
        let wanted = serde_json::json!({"name": "a", "freed": false, "state": "free"});
        assert_eq!((status, value), (0, wanted));
    });
}

#[test]
fn on_a_terminal_only_yes_is_the_consent() {
    let server = server();
    let locks = locks(&server, "one");
    let lock = held(&locks, "a");
    for (answer, status) in [("y\n", 75), ("\n", 75), ("yes\n", 0)] {
        assert!(lock.is_held());
        let (mut typed, program) = terminal();
        let child = {
            // Dropped with its end of the terminal.
            let mut release = on(&server.url(), &["release", "a", "--force"]);
            let release = release.stdin(program.try_clone().unwrap()).stderr(program);
            release.stdout(Stdio::piped()).spawn().unwrap()
        };
        typed.write_all(answer.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{answer:?}");
        let out = String::from_utf8(output.stdout).unwrap();
        assert_eq!(
            out.contains("removed the hold of one"),
            status == 0,
            "{out}"
        );
        let mut seen = Vec::new();
        // Its other end is closed: after what was written comes an error.
        let _ = typed.read_to_end(&mut seen);
        let seen = String::from_utf8_lossy(&seen);
        assert!(seen.contains("Holder:  one"), "{seen}");
    }
    assert!(eventually(MINUTE, || !lock.is_held()));
}

#[test]
fn exactly_one_way_to_release_is_given_and_a_token_that_is_one() {
    for words in [
        &["release", "a"][..],
        &["release", "a", "--force", "--token-stdin"],
        &["release", "a", "--token-env", "T", "--token-stdin"],
        &["release", "a", "--token-env", "NONE"],
        &["release", "a", "--token-env", "T"],
        &["release", "a", "--token-stdin"],
        &["status"],
        &["status", ""],
        &["list", "--limit", "x"],
    ] {
        let mut command = bare(words);
        command
            .env("TENURE_STORE", "redis://localhost:1/")
            .env("T", "no token");
        let (status, out, err) = said(&mut command);
        // The name is looked at where the store is.
        let wanted = if words == ["status", ""] { 69 } else { 64 };
        assert_eq!((status, &*out), (wanted, ""), "{words:?}: {err}");
        assert!(!err.contains("no token\n"), "{err}");
    }
}

#[test]
fn what_is_wrong_with_the_store_has_its_status() {
    let server = server();
    let mut client = server.client().unwrap();
    client
        .ok(&["ACL", "SETUSER", "me", "on", ">s3cret", "~*", "-@all"])
        .unwrap();
    let address = server.addr();
    for verb in [
        &["status", "a"][..],
        &["list"],
        &["release", "a", "--force"],
    ] {
        for (url, wanted) in [
            (format!("redis://me:s3cret@{address}/"), 77),
            (format!("redis://me:wr0ng@{address}/"), 77),
            ("redis://:s3cret@127.0.0.1:1/".to_owned(), 69),
            ("ftp://:s3cret@h/".to_owned(), 64),
        ] {
            let (status, out, err) = said(&mut on(&url, verb));
            assert_eq!((status, &*out), (wanted, ""), "{url} {verb:?}: {err}");
            assert!(
                err.starts_with("tenure: ") && err.lines().count() == 1,
                "{err}"
            );
            assert!(!err.contains("s3cret") && !err.contains("wr0ng"), "{err}");
        }
        // The default store, where it can be none.
        assert_eq!(said(&mut bare(verb)).0, 73);
    }
}

#[test]
fn a_file_is_a_store_too() {
    let folder = Folder::new().unwrap();
    let url = format!("sqlite:{}/locks.db?label=one", folder.path().display());
    let locks = tenure::blocking::connect(&url).unwrap();
    let lock = held(&locks, "a");
    let (status, out, err) = said(&mut on(&url, &["status", "a"]));
    assert_eq!((status, &*err), (0, ""));
    assert!(out.contains("Holder:  one\n"), "{out}");
    let (_, value) = json(&mut on(&url, &["list"]));
    assert_eq!(value["locks"][0]["name"], "a");
    let (status, out, _) = said(&mut on(&url, &["release", "a", "--force"]));
    assert!(out.starts_with("`a`: removed the hold of one"), "{out}");
    assert_eq!(status, 0);
    assert!(eventually(MINUTE, || !lock.is_held()));
}
