//! Acquire and release, over and over, by each of the contenders.

use std::error::Error;
use std::io::{Read as _, Write as _};

use stats_alloc::Region;
use tenure_client::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::features;

/// Who is compared over tokio; the raw socket first.
pub(crate) const CONTENDERS: &[&str] = &["raw", "tenure", "redis"];
/// Who is compared on a thread that blocks; the raw socket first.
pub(crate) const BLOCKING: &[&str] = &["raw-blocking", "tenure-blocking"];

const SET: &[u8] = b"*7\r\n$3\r\nSET\r\n$10\r\nbench:pair\r\n$20\r\n0123456789abcdef0123\r\n$2\r\nNX\r\n$3\r\nGET\r\n$2\r\nPX\r\n$5\r\n30000\r\n";
const RELEASE: &[u8] =
    b"*4\r\n$5\r\nDELEX\r\n$10\r\nbench:pair\r\n$4\r\nIFEQ\r\n$20\r\n0123456789abcdef0123\r\n";

pub(crate) fn run(
    who: &str,
    pairs: &str,
    address: &str,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let pairs = pairs.parse()?;
    if BLOCKING.contains(&who) {
        return run_blocking(who, pairs, address);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let region = Region::new(crate::ALLOCATOR);
    runtime.block_on(async {
        match who {
            "raw" => raw(pairs, address).await,
            "tenure" => tenure(pairs, address).await,
            "redis" => redis(pairs, address).await,
            _ => features::run(who, pairs, address).await,
        }
    })?;
    print(&region);
    Ok(())
}

fn run_blocking(who: &str, pairs: u64, address: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let region = Region::new(crate::ALLOCATOR);
    if who == "raw-blocking" {
        let mut raw = Raw::connect(address)?;
        for _ in 0..pairs {
            raw.pair()?;
        }
    } else {
        let locks = tenure_blocking::connect(&format!("redis://{address}"))?;
        for _ in 0..pairs {
            blocking(&locks)?;
        }
    }
    print(&region);
    Ok(())
}

fn print(region: &Region<'_, std::alloc::System>) {
    let change = region.change();
    println!("allocations {}", change.allocations + change.reallocations);
    println!("bytes {}", change.bytes_allocated);
}

/// The limit for a thread: prepared bytes, whole reads, on a socket that blocks.
pub(crate) struct Raw(std::net::TcpStream);

impl Raw {
    pub(crate) fn connect(address: &str) -> std::io::Result<Raw> {
        let stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Raw(stream))
    }

    pub(crate) fn pair(&mut self) -> std::io::Result<()> {
        let mut reply = [0; 64];
        self.0.write_all(SET)?;
        let n = self.0.read(&mut reply)?;
        assert_eq!(&reply[..n], b"$-1\r\n");
        self.0.write_all(RELEASE)?;
        let n = self.0.read(&mut reply)?;
        assert_eq!(&reply[..n], b":1\r\n");
        Ok(())
    }
}

/// A pair of the blocking client.
pub(crate) fn blocking(locks: &tenure_blocking::Locks) -> Result<(), tenure_blocking::Error> {
    let lock = locks.acquire("bench:pair")?;
    assert!(lock.release()?.confirmed);
    Ok(())
}

/// The limit: prepared bytes, whole reads.
async fn raw(pairs: u64, address: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut reply = [0; 64];
    for _ in 0..pairs {
        stream.write_all(SET).await?;
        let n = stream.read(&mut reply).await?;
        assert_eq!(&reply[..n], b"$-1\r\n");
        stream.write_all(RELEASE).await?;
        let n = stream.read(&mut reply).await?;
        assert_eq!(&reply[..n], b":1\r\n");
    }
    Ok(())
}

async fn tenure(pairs: u64, address: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let locks =
        tenure_tokio::connect_config(&Config::from_url(&format!("redis://{address}"))?).await?;
    for _ in 0..pairs {
        let lock = locks.acquire("bench:pair").await?;
        assert!(lock.release().await?.confirmed);
    }
    Ok(())
}

/// What people write by hand: SET NX PX, then compare and delete, on a multiplexed connection.
async fn redis(pairs: u64, address: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let client = redis::Client::open(format!("redis://{address}"))?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    for pair in 0..pairs {
        let token = format!("{pair:020}");
        let mut set = redis::cmd("SET");
        set.arg("bench:pair")
            .arg(&token)
            .arg("NX")
            .arg("PX")
            .arg(30_000);
        let granted: Option<String> = set.query_async(&mut connection).await?;
        assert!(granted.is_some());
        let mut release = redis::cmd("DELEX");
        let released: u32 = release
            .arg("bench:pair")
            .arg("IFEQ")
            .arg(&token)
            .query_async(&mut connection)
            .await?;
        assert_eq!(released, 1);
    }
    Ok(())
}
