//! Replicas of real servers.

use std::time::Duration;

use crate::{Failure, Server, eventually};

const LIMIT: Duration = Duration::from_secs(30);

impl Server {
    /// Starts a replica of this server, of the same kind and as durable. Returns once both say that it is in step.
    ///
    /// # Errors
    /// When it does not come up, or not into step.
    pub fn start_replica(&self) -> Result<Self, Failure> {
        let before = online(self)?;
        // A server waits for more replicas to come before it begins to send.
        self.client()?.config_set("repl-diskless-sync-delay", "0")?;
        let port = self.port().to_string();
        let mut setup = Self::setup(self.kind()).arguments(&["--replicaof", "127.0.0.1", &port]);
        if self.keeps_data() {
            setup = setup.keep_data();
        }
        let replica = setup.start()?;
        let mut client = replica.client()?;
        let in_step = eventually(LIMIT, || {
            let up = client.info_field("replication", "master_link_status");
            up.is_ok_and(|up| up.as_deref() == Some("up"))
                && online(self).is_ok_and(|online| online > before)
        });
        match in_step {
            true => Ok(replica),
            false => Err(format!("the replica does not come into step\n{}", replica.log()).into()),
        }
    }

    /// Makes a replica a primary of its own: from here on it hears nothing of the other one.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn promote(&self) -> Result<(), Failure> {
        self.client()?.ok(&["REPLICAOF", "NO", "ONE"]).map(drop)
    }
}

fn online(server: &Server) -> Result<usize, Failure> {
    let info = server.client()?.info("replication")?;
    Ok(info.matches("state=online").count())
}
