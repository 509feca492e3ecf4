//! Servers that are none, and servers that say what real ones of the matrix cannot be brought to say.

use std::time::{Duration, Instant};

use tenure_client::{
    Cause, Error, Failure as Fault, LinkFault, ProtocolError, Reason, ServerError, Wait,
};
use tenure_tests::fake::Stranger;
use tenure_tests::tenure::LONG;
use tenure_tests::{
    Answer, Call, Cut, Failure, Handshake, Model, Proxy, Recorder, ScriptedServer, ServerKind,
    Tenure, Told,
};

type Outcome = Result<(), Failure>;

const NAME: &str = "orders";
const KEY: &str = "lock:orders";
const LEASE: Duration = Duration::from_millis(900);
const SHORT: Duration = Duration::from_millis(300);
const LIMIT: Duration = Duration::from_millis(200);
const TLS: LinkFault = LinkFault::Protocol(ProtocolError::TlsPeer);
const HTTP: LinkFault = LinkFault::Protocol(ProtocolError::HttpPeer);
const SSH: LinkFault = LinkFault::Protocol(ProtocolError::UnknownType(b'S'));
const TRYAGAIN: &str = "TRYAGAIN Multiple keys request during rehashing of slot";

fn hasty(url: &str) -> Result<Tenure, Failure> {
    Tenure::start(url, |config| {
        config
            .label("me")
            .connect_limit(LIMIT)
            .reply_limit(LIMIT)
            .reconnect_limit(LIMIT / 2)
    })
}

/// A server in memory that speaks as Redis does, with a key to wait behind if that is wanted.
fn model() -> Model {
    Model::new(ServerKind::Redis86)
}

fn serve(model: Model) -> Result<ScriptedServer, Failure> {
    let handshake = Handshake {
        version: "8.6.3".into(),
        ..Handshake::default()
    };
    Ok(ScriptedServer::model(handshake, model)?)
}

fn connect(url: &str) -> Result<Tenure, Failure> {
    let tenure = hasty(url)?;
    tenure.wait(tenure.locks().ready())??;
    Ok(tenure)
}

/// The error of a peer that does not speak the protocol: nothing that waiting or trying again cures.
#[track_caller]
fn is_protocol<T>(outcome: Result<T, Error>, fault: LinkFault, word: &str) {
    let Err(error) = outcome else {
        panic!("a stranger granted it");
    };
    let reason = Reason::Failure {
        failure: Fault::Link(fault),
        text: None,
    };
    assert_eq!(error, Error::Protocol(reason));
    assert!(!error.is_retryable());
    assert!(error.to_string().contains(word), "{error}");
}

fn renewed(told: &Told) -> bool {
    matches!(told, Told::Renewed(_))
}

fn was_down(told: &Recorder) -> usize {
    told.count(|told| matches!(told, Told::Disconnected(_)))
}

/// Every verb says so, at once, whatever it would wait.
fn is_told_apart(stranger: Stranger, fault: LinkFault, word: &str) -> Outcome {
    let server = ScriptedServer::stranger(stranger)?;
    let tenure = hasty(&server.url())?;
    is_protocol(tenure.wait(tenure.locks().ready())?, fault, word);
    let locks = tenure.locks();
    is_protocol(tenure.wait(locks.try_acquire(NAME))?, fault, word);
    is_protocol(tenure.wait(locks.acquire(NAME))?, fault, word);
    let limited = locks.lock(NAME).wait(Wait::For(LONG * 2)).acquire();
    is_protocol(tenure.wait(limited)?, fault, word);
    let ran = tenure.wait(locks.lock(NAME).run(|_| async { "ran" }))?;
    is_protocol(ran, fault, word);
    assert_eq!(server.commands().len(), 0);
    Ok(())
}

/// A server is replaced by something else while somebody waits and somebody holds; then it comes back.
fn is_told_apart_on_reconnect(stranger: Stranger, fault: LinkFault, word: &str) -> Outcome {
    let server = serve(model().key("lock:taken", "somebody else", None))?;
    let other = ScriptedServer::stranger(stranger)?;
    let proxy = Proxy::start(server.addr())?;
    let tenure = connect(&proxy.url())?;
    let held = tenure.hold(NAME, LEASE)?;
    let waiting = tenure.spawn(tenure.locks().acquire("taken"));
    let queued = tenure.spawn(tenure.locks().acquire("taken"));
    let attempts = |call: &Call| call.is("SET") && call.arg(1) == "lock:taken";
    assert!(server.wait_for(2, LONG, attempts));

    proxy.redirect(other.addr());
    proxy.cut(Cut::Reset);
    let began = Instant::now();
    is_protocol(tenure.wait(waiting)??, fault, word);
    is_protocol(tenure.wait(queued)??, fault, word);
    assert!(began.elapsed() < LEASE / 2, "{:?}", began.elapsed());
    // A hold goes on until it is given up.
    assert!(held.is_held());
    let lost = tenure.lost(&held, LEASE)?;
    assert!(matches!(lost.cause, Cause::Expired { .. }), "{lost:?}");
    drop(held);

    // The client itself has not given up.
    proxy.redirect(server.addr());
    tenure
        .told()
        .wait_for(2, LONG, |told| *told == Told::Connected)?;
    let lock = tenure.wait(tenure.locks().acquire(NAME))??;
    tenure.release(lock)
}

#[test]
fn a_tls_server_is_told_apart() -> Outcome {
    is_told_apart(Stranger::Tls, TLS, "TLS")
}

#[test]
fn a_tls_server_is_told_apart_on_reconnect() -> Outcome {
    is_told_apart_on_reconnect(Stranger::Tls, TLS, "TLS")
}

#[test]
fn a_web_server_is_told_apart() -> Outcome {
    is_told_apart(Stranger::Http, HTTP, "HTTP")
}

#[test]
fn a_web_server_is_told_apart_on_reconnect() -> Outcome {
    is_told_apart_on_reconnect(Stranger::Http, HTTP, "HTTP")
}

#[test]
fn another_service_is_told_apart() -> Outcome {
    is_told_apart(Stranger::Ssh, SSH, "not RESP")
}

#[test]
fn another_service_is_told_apart_on_reconnect() -> Outcome {
    is_told_apart_on_reconnect(Stranger::Ssh, SSH, "not RESP")
}

#[test]
fn a_silent_server_is_unavailable_and_waited_for() -> Outcome {
    let silent = ScriptedServer::stranger(Stranger::Silent)?;
    let server = serve(model())?;
    let proxy = Proxy::start(silent.addr())?;
    let tenure = hasty(&proxy.url())?;
    let timed_out = |outcome: Result<(), Error>| {
        let error = outcome.expect_err("a silent server granted it");
        let reason = Reason::Failure {
            failure: Fault::Link(LinkFault::DialTimedOut),
            text: None,
        };
        assert_eq!(error, Error::Unavailable(reason));
        assert!(error.is_retryable());
    };
    timed_out(tenure.wait(tenure.locks().ready())?);
    let began = Instant::now();
    let request = tenure.locks().lock(NAME).wait(Wait::For(SHORT * 2));
    timed_out(tenure.wait(request.acquire())?.map(drop));
    assert!(began.elapsed() >= SHORT * 2, "{:?}", began.elapsed());

    let waiting = tenure.spawn(tenure.locks().acquire(NAME));
    proxy.redirect(server.addr());
    let lock = tenure.wait(waiting)???;
    tenure.release(lock)
}

#[test]
fn garbage_in_place_of_a_reply_ends_the_wait_and_leaves_nothing() -> Outcome {
    let set = |call: &Call| call.is("SET");
    let server = serve(model().fault(1..=1, set, "garbage\r\n"))?;
    let tenure = connect(&server.url())?;
    let garbage = LinkFault::Protocol(ProtocolError::UnknownType(b'g'));
    is_protocol(tenure.wait(tenure.locks().acquire(NAME))?, garbage, "RESP");
    // Nobody knows what became of it: it is cleared on the next connection.
    assert!(server.wait_for(1, LONG, |call| call.is("DELEX") && call.connection == 1));
    let sets = server
        .commands()
        .iter()
        .filter(|call| call.is("SET"))
        .count();
    assert_eq!(sets, 1);
    let lock = tenure.wait(tenure.locks().acquire(NAME))??;
    tenure.release(lock)
}

#[test]
fn garbage_in_place_of_a_renewal_ends_the_connection_and_not_the_hold() -> Outcome {
    let renewal = |call: &Call| call.is("SET") && call.has("IFEQ");
    let server = serve(model().fault(2..=2, renewal, "garbage\r\n"))?;
    let tenure = connect(&server.url())?;
    let lock = tenure.hold(NAME, LEASE)?;
    tenure.told().wait_for(3, LONG, renewed)?;
    assert_eq!(was_down(tenure.told()), 1);
    assert!(lock.is_held());
    tenure.release(lock)
}

#[test]
fn a_reply_without_a_question_ends_the_connection_and_not_the_hold() -> Outcome {
    let server = serve(model())?;
    let tenure = connect(&server.url())?;
    let lock = tenure.hold(NAME, LEASE)?;
    tenure.told().wait_for(1, LONG, renewed)?;
    server.push(b"+OK\r\n");
    tenure.told().wait_for(1, LONG, |told| {
        *told == Told::Disconnected(LinkFault::UnexpectedReply)
    })?;
    tenure.told().more(2, LONG, renewed)?;
    // A push is none.
    server.push(b">2\r\n+invalidate\r\n*1\r\n$1\r\nx\r\n");
    tenure.told().more(2, LONG, renewed)?;
    assert_eq!(was_down(tenure.told()), 1);
    assert!(lock.is_held());
    tenure.release(lock)
}

#[test]
fn attempts_without_an_answer_are_few_and_all_of_them_cleared() -> Outcome {
    let set = |call: &Call| call.is("SET") && call.has("NX");
    let server = serve(model().fault(1..=usize::MAX, set, Answer::Reset))?;
    let tenure = connect(&server.url())?;
    let error = tenure.wait(tenure.locks().acquire(NAME))?.map(drop);
    let reason = Reason::Failure {
        failure: Fault::TooManyUnanswered,
        text: None,
    };
    assert_eq!(error, Err(Error::Unavailable(reason)));
    let values = |calls: &[Call], name: &str, at: usize| -> Vec<String> {
        let named = calls.iter().filter(|call| call.is(name));
        let mut values: Vec<_> = named.map(|call| call.arg(at)).collect();
        values.sort();
        values
    };
    let written = values(&server.commands(), "SET", 2);
    assert!(written.len() > 3 && written.len() < 10, "{written:?}");
    assert!(server.wait_for(written.len(), LONG, |call| call.is("DELEX")));
    assert_eq!(values(&server.commands(), "DELEX", 3), written);
    Ok(())
}

#[test]
fn attempts_without_an_answer_do_not_say_that_somebody_holds_it() -> Outcome {
    let set = |call: &Call| call.is("SET") && call.has("NX");
    // The reply is overdue once, more than once, or not yet when the wait ends.
    for wait in [LIMIT * 3 / 2, LIMIT * 7 / 2, LIMIT / 2] {
        let server = serve(model().fault(1..=usize::MAX, set, Answer::stall()))?;
        let tenure = connect(&server.url())?;
        let request = tenure.locks().lock(NAME).wait(Wait::For(wait));
        let error = tenure.wait(request.acquire())?.map(drop);
        assert!(
            matches!(error, Err(Error::Unavailable(_))),
            "{wait:?}: {error:?}"
        );
    }
    Ok(())
}

#[test]
fn a_slot_being_moved_is_waited_for() -> Outcome {
    let set = |call: &Call| call.is("SET") && call.has("NX");
    let server = serve(model().fault(1..=4, set, Answer::error(TRYAGAIN)))?;
    let tenure = connect(&server.url())?;
    let moving = |outcome: Result<(), Error>| {
        let error = outcome.expect_err("granted in a slot that is being moved");
        let reason = Reason::Failure {
            failure: Fault::Server(ServerError::TryAgain),
            text: Some(TRYAGAIN.into()),
        };
        assert_eq!(error, Error::Unavailable(reason));
        assert!(error.is_retryable());
        assert!(error.to_string().contains("TRYAGAIN"));
    };
    moving(tenure.wait(tenure.locks().try_acquire(NAME))?.map(drop));
    let lock = tenure.wait(tenure.locks().acquire(NAME))??;
    assert_eq!(server.commands().iter().filter(|call| set(call)).count(), 5);
    tenure.release(lock)?;
    assert_eq!(was_down(tenure.told()), 0);

    let server = serve(model().fault(1..=usize::MAX, set, Answer::error(TRYAGAIN)))?;
    let tenure = connect(&server.url())?;
    let began = Instant::now();
    let request = tenure.locks().lock(NAME).wait(Wait::For(SHORT));
    moving(tenure.wait(request.acquire())?.map(drop));
    assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
    // Nothing was granted, so there is nothing to clear.
    let cleared = |call: &Call| call.is("DELEX") || call.is("EVALSHA");
    assert_eq!(
        server
            .commands()
            .iter()
            .filter(|call| cleared(call))
            .count(),
        0
    );
    Ok(())
}

#[test]
fn a_slot_being_moved_does_not_end_a_hold() -> Outcome {
    let script = |call: &Call| call.is("EVALSHA") && call.arg(3) == KEY && call.args.len() == 6;
    // After that, the model knows no script, so each is sent whole.
    let model = Model::new(ServerKind::Redis70)
        .fault(1..=3, script, Answer::error(TRYAGAIN))
        .fault(1..=usize::MAX, |call| call.is("EVAL"), Answer::int(1));
    let server = ScriptedServer::model(Handshake::default(), model)?;
    let tenure = connect(&server.url())?;
    let lock = tenure.hold(NAME, LEASE)?;
    tenure.told().wait_for(2, LONG, renewed)?;
    let failed = tenure.told().count(|told| match told {
        Told::RenewalFailed(_, Error::Unavailable(Reason::Failure { failure, .. })) => {
            *failure == Fault::Server(ServerError::TryAgain)
        }
        _ => false,
    });
    assert_eq!(failed, 3, "{:?}", tenure.told().all());
    assert!(lock.is_held());
    assert_eq!(was_down(tenure.told()), 0);
    tenure.release(lock)
}
