//! The script that lets go of a hold before its minimum is over, as its text says.

use tenure_core::time::Tick;

use crate::keys::{Reply, number};
use crate::server::{Mood, Server};

impl Server {
    pub(crate) fn cool(&mut self, now: Tick, key: &[u8], arguments: &[Vec<u8>]) -> Reply {
        let [cooling, ms, count, values @ ..] = arguments else {
            return Reply::Error("ERR the simulated server wants all of it".to_owned());
        };
        self.keys.note_read(key);
        let present = match self.keys.text(key) {
            Ok(Some(present)) => present.clone(),
            Ok(None) | Err(_) => return Reply::Int(0),
        };
        if present == *cooling {
            return Reply::Int(1);
        }
        let Some(at) = values.iter().position(|value| *value == present) else {
            return Reply::Int(0);
        };
        let own = number(count).unwrap_or(0);
        if at as i64 >= own {
            self.keys.remove(key);
            return self.after_a_write(Reply::Int(0));
        }
        let now_ms = self.now_ms(now);
        let set = [key.to_vec(), cooling.clone(), b"PX".to_vec(), ms.clone()];
        if self.mood == Mood::OutOfMemory
            || matches!(self.keys.set(self.dialect, &set, now_ms), Reply::Error(_))
        {
            self.keys.expire_in(key, ms, now_ms);
        }
        self.after_a_write(Reply::Int(1))
    }
}
