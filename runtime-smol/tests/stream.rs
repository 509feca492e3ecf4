//! The socket by itself: what it takes from any thread, and whom it wakes.

use std::future::poll_fn;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use tenure_client::binding::{Binding as _, Endpoint, Stream as _};
use tenure_smol::SmolBinding;

fn listen() -> (TcpListener, Endpoint) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = Endpoint::Tcp {
        host: "127.0.0.1".to_owned(),
        port: listener.local_addr().unwrap().port(),
    };
    (listener, endpoint)
}

#[test]
fn a_full_socket_says_so_and_wakes_the_task_when_there_is_room() {
    let (listener, endpoint) = listen();
    let mut stream = smol::block_on(SmolBinding::new().dial(&endpoint)).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    // On a thread that knows no runtime.
    let (stream, written) = thread::spawn(move || {
        let mut written = 0;
        loop {
            match stream.try_write(&[7; 65_536]) {
                Ok(n) => written += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return (stream, written),
                Err(error) => panic!("{error}"),
            }
        }
    })
    .join()
    .unwrap();
    let mut stream = stream;
    let reading = thread::spawn(move || {
        let mut bytes = vec![0; written];
        peer.read_exact(&mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
        peer
    });
    smol::block_on(async {
        loop {
            poll_fn(|cx| stream.poll_write_ready(cx)).await.unwrap();
            match stream.try_write(b"more") {
                Ok(4) => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => panic!("{other:?}"),
            }
        }
    });
    let mut peer = reading.join().unwrap();
    let mut bytes = [0; 4];
    peer.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"more");
}

#[test]
fn what_arrives_is_read_and_the_end_is_a_read_of_nothing() {
    let (listener, endpoint) = listen();
    let mut stream = smol::block_on(SmolBinding::new().dial(&endpoint)).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let mut bytes = [0; 16];
    // The task waits before anything is sent.
    let n = smol::block_on(async {
        let mut sent = false;
        poll_fn(|cx| {
            let poll = stream.poll_read(cx, &mut bytes);
            if !std::mem::replace(&mut sent, true) {
                assert!(poll.is_pending());
                peer.write_all(b"hello").unwrap();
            }
            poll
        })
        .await
    });
    assert_eq!((n.unwrap(), &bytes[..5]), (5, &b"hello"[..]));
    drop(peer);
    let end = smol::block_on(poll_fn(|cx| stream.poll_read(cx, &mut bytes)));
    assert_eq!(end.unwrap(), 0);
}

#[test]
fn only_an_abort_is_a_reset() {
    for aborted in [false, true] {
        let (listener, endpoint) = listen();
        let stream = smol::block_on(SmolBinding::new().dial(&endpoint)).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        match aborted {
            true => stream.abort(),
            false => drop(stream),
        }
        let end = peer.read(&mut [0; 16]).map_err(|error| error.kind());
        let expected = if aborted {
            Err(ErrorKind::ConnectionReset)
        } else {
            Ok(0)
        };
        assert_eq!(end, expected);
    }
}

#[test]
fn what_cannot_be_dialled_says_why() {
    let (listener, endpoint) = listen();
    drop(listener);
    let refused = smol::block_on(SmolBinding::new().dial(&endpoint)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}
