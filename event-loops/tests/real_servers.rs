//! The programs as a reader runs them, each against real servers: what they say, and what is on the server meanwhile.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use tenure_tests::{Cut, Failure, Proxy, Server, ServerKind, Side, eventually, key_of};

type Outcome = Result<(), Failure>;

/// Longer than anything here takes, on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// A program that runs. It is killed on drop.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Program {
    fn start(path: &str, arguments: &[&str]) -> Result<Self, Failure> {
        let mut child = Command::new(path)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let (send, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                send.send(line).ok();
            }
        });
        let input = child.stdin.take();
        Ok(Self {
            child,
            input,
            lines,
        })
    }

    /// Waits for a line that begins so; gives it.
    fn says(&self, words: &str) -> Result<String, Failure> {
        let mut said = Vec::new();
        loop {
            match self.lines.recv_timeout(LONG) {
                Ok(line) if line.starts_with(words) => return Ok(line),
                Ok(line) => said.push(line),
                Err(_) => return Err(format!("it does not say {words:?}, but {said:?}").into()),
            }
        }
    }

    fn type_line(&mut self, line: &str) -> Outcome {
        let input = self.input.as_mut().ok_or("its input has ended")?;
        Ok(writeln!(input, "{line}")?)
    }

    /// Ends its input, and waits for its end; the exit status.
    fn end(mut self) -> Result<i32, Failure> {
        drop(self.input.take());
        let mut status = None;
        eventually(LONG, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        Ok(status
            .and_then(|status| status.code())
            .ok_or("it does not end")?)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A program that says `held`, `renewed`, and `lost` on a line of its own, with a key of the same name as its lock.
fn lives_through_trouble(path: &str, address: impl Fn(&Proxy) -> String) -> Outcome {
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &[])?;
        let mut client = server.client()?;
        let proxy = Proxy::start(server.addr())?;
        // One byte at a time: no reply comes in one piece.
        proxy.trickle(Side::ToClient, true);
        let key = key_of("a");

        // Held, renewed, and renewed again after its connection was cut.
        let program = Program::start(path, &[&address(&proxy), "a"])?;
        program.says("held")?;
        program.says("renewed")?;
        assert!(client.exists(&key)?);
        let connections = proxy.counts().connections;
        proxy.cut(Cut::Reset);
        program.says("renewed")?;
        assert_eq!(proxy.counts().connections, connections + 1);
        assert_eq!(program.end()?, 0);
        assert!(!client.exists(&key)?);

        // Told of the loss when the key is deleted, and it is not made again.
        let program = Program::start(path, &[&address(&proxy), "a"])?;
        program.says("held")?;
        assert!(client.del(&key)?);
        let lost = program.says("lost")?;
        assert_eq!(lost, "lost: its key is gone: deleted, evicted or flushed");
        assert_eq!(program.end()?, 1);
        assert!(!client.exists(&key)?);

        // Told of the loss when nothing is answered any more, which is when the key has not yet expired.
        let program = Program::start(path, &[&address(&proxy), "a"])?;
        program.says("held")?;
        proxy.black_hole(true);
        let lost = program.says("lost")?;
        assert!(
            lost.starts_with("lost: no renewal was confirmed in time"),
            "{lost}"
        );
        assert!(client.exists(&key)?);
        proxy.black_hole(false);
        assert_eq!(program.end()?, 1);
        assert!(!client.exists(&key)?);
    }
    Ok(())
}

#[test]
fn poll_keeps_one_lease() -> Outcome {
    lives_through_trouble(env!("CARGO_BIN_EXE_poll"), |proxy| proxy.addr().to_string())
}

#[test]
fn own_connection_keeps_a_lease_between_other_commands() -> Outcome {
    let path = env!("CARGO_BIN_EXE_own_connection");
    lives_through_trouble(path, Proxy::url)?;
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &[])?;
        let mut client = server.client()?;
        let mut first = Program::start(path, &[&server.url(), "journal"])?;
        first.says("held")?;
        let mut second = Program::start(path, &[&server.url(), "journal"])?;
        second.type_line("of the second")?;
        first.type_line("of the first")?;
        first.type_line("of the first, too")?;
        first.says("renewed")?;
        assert_eq!(first.end()?, 0);
        second.says("held")?;
        assert_eq!(second.end()?, 0);
        let journal = client.ok(&["LRANGE", "journal", "0", "-1"])?.text();
        assert_eq!(journal, "of the first of the first, too of the second");
    }
    Ok(())
}

#[test]
fn thousand_renews_many_in_few_writes() -> Outcome {
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &[])?;
        let mut client = server.client()?;
        let proxy = Proxy::start(server.addr())?;
        let address = proxy.addr().to_string();
        let program = Program::start(env!("CARGO_BIN_EXE_thousand"), &[&address])?;
        program.says("1000 held")?;
        // All of them live on over the next connection.
        proxy.cut(Cut::Reset);
        assert_eq!(client.keys()?.len(), 1000);
        let line = program.says("5")?;
        let numbers: Vec<u32> = line
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        let [renewals, writes] = numbers[..] else {
            return Err(line.into());
        };
        assert!(renewals >= 5000 && writes * 10 < renewals, "{line}");
        assert_eq!(program.says("1000 released")?, "1000 released, 0 lost");
        assert_eq!(program.end()?, 0);
        assert!(client.keys()?.is_empty());
    }
    Ok(())
}

#[test]
fn embedded_opens_the_valve_while_it_holds() -> Outcome {
    let path = env!("CARGO_BIN_EXE_embedded");
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &[])?;
        let mut client = server.client()?;
        let proxy = Proxy::start(server.addr())?;
        proxy.trickle(Side::ToClient, true);
        let address = proxy.addr().to_string();
        let key = key_of("valve");

        let first = Program::start(path, &[&address, "valve"])?;
        first.says("open")?;
        let second = Program::start(path, &[&address, "valve"])?;
        proxy.cut(Cut::Fin);
        assert_eq!(first.end()?, 0);
        second.says("open")?;
        // Closed before the key can expire.
        proxy.black_hole(true);
        second.says("closed")?;
        assert!(client.exists(&key)?);
        proxy.black_hole(false);
        assert_eq!(second.end()?, 0);
        assert!(!client.exists(&key)?);
    }
    Ok(())
}
