//! The script that lets go of a hold before its minimum is over, and what its replies mean.

use alloc::vec::Vec;

use super::{Dialect, Form, ReplyTo, Script, Sent, Verdict, call, failed, script_may_have_run};
use crate::error::ServerError;
use crate::lease::Outcome;
use crate::leases::{LeaseId, Leases};
use crate::resp::{Arg, Value};

/// Compare with the values that stand for the hold, of which there are as many as the third argument says: such a one is replaced
/// by the first argument, which stays for as long as the second says. Compare with the others: such a one is deleted. Answers
/// 1 if it was the hold's, or has been replaced before, else 0.
///
/// A full server takes no other value: then the one that is there stays for so long.
pub const COOL: Script = Script {
    text: "local v=redis.pcall('GET',KEYS[1]) \
if type(v)=='table' then if v.err and string.find(v.err,'WRONGTYPE',1,true) then return 0 end return v end \
if v==ARGV[1] then return 1 end \
for i=4,#ARGV do if v==ARGV[i] then \
if i>3+tonumber(ARGV[3]) then redis.call('DEL',KEYS[1]) return 0 end \
local s=redis.pcall('SET',KEYS[1],ARGV[1],'PX',ARGV[2]) \
if s.err then redis.call('PEXPIRE',KEYS[1],ARGV[2]) end return 1 end end return 0",
    sha: "ceec97d05497a71839a52d72cf7f7027c2ccbd0a",
};

impl Dialect {
    /// How to put a clean-up that comes before the minimum of its hold is over.
    pub(super) fn cooling(&self) -> Form {
        Form::Cool(match self.known.cool {
            true => Sent::Sha,
            false => Sent::Text,
        })
    }

    pub(super) fn judge_cool(&mut self, sent: Sent, reply: &ReplyTo<'_, '_>) -> Verdict<'static> {
        if let Some(text) = reply.value.error() {
            let error = ServerError::of(text);
            self.known.cool &= error != ServerError::NoScript;
            return match (error, sent) {
                (ServerError::NoScript, Sent::Sha) => Verdict::Again(Form::Cool(Sent::Text)),
                (error, _) => failed(error, script_may_have_run(error)),
            };
        }
        self.known.cool = true;
        match reply.value {
            Value::Int(n) => Verdict::Done(Outcome::Cleared { mine: n > 0 }),
            _ => failed(ServerError::Other, true),
        }
    }
}

pub(super) fn commands(
    sent: Sent,
    leases: &Leases,
    id: LeaseId,
    key: Arg<'_>,
    mut each: impl FnMut(&[Arg<'_>]),
) {
    let (Some(lease), Some(cooling)) = (leases.lease(id), leases.cooling(id)) else {
        return;
    };
    let leftovers = lease.leftovers();
    let all = leftovers.as_slice().iter();
    let values: Vec<_> = all.filter_map(|own| leases.value(id, *own)).collect();
    let [verb, script] = call(&COOL, sent);
    let mut args: Vec<Arg<'_>> = [
        verb,
        script,
        Arg::Int(1),
        key,
        Arg::Bytes(cooling.as_bytes()),
        // Over since it was handed out: the shortest time there is.
        Arg::Int(leases.rest(id).max(1)),
        Arg::Int(leftovers.of_hold().len() as u64),
    ]
    .into();
    args.extend(values.iter().map(|value| Arg::Bytes(value.as_bytes())));
    each(&args);
}
