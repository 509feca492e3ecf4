//! Scripts, and how they are sent.

use crate::error::ServerError;
use crate::resp::Arg;

/// A script: its text, and the SHA-1 of it by which servers know it.
#[derive(Debug)]
pub struct Script {
    /// The text.
    pub text: &'static str,
    /// Its SHA-1 in hexadecimal.
    pub sha: &'static str,
}

/// Compare, then set the TTL. A key of another type is answered with 0, a string with its value.
pub const RENEW: Script = Script {
    text: "local v=redis.pcall('GET',KEYS[1]) \
if type(v)=='table' then if v.err and string.find(v.err,'WRONGTYPE',1,true) then return 0 end return v end \
if v==ARGV[1] then return redis.call('PEXPIRE',KEYS[1],ARGV[2]) end return v",
    sha: "07cccd8497c8a479eb357c654a453e200227a661",
};

/// Compare, then write another value with a fresh TTL.
pub const ADOPT: Script = Script {
    text: "local v=redis.pcall('GET',KEYS[1]) \
if type(v)=='table' then if v.err and string.find(v.err,'WRONGTYPE',1,true) then return 0 end return v end \
if v==ARGV[1] then redis.call('SET',KEYS[1],ARGV[3],'PX',ARGV[2]) return 1 end return v",
    sha: "a6e5508c0a7eba601f4eccbacd90ebfec09f7431",
};

/// Compare, then delete.
pub const CLEAR: Script = Script {
    text: "local v=redis.pcall('GET',KEYS[1]) \
if type(v)=='table' then if v.err and string.find(v.err,'WRONGTYPE',1,true) then return 0 end return v end \
if v==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0",
    sha: "c38fe9c96246fd48f9b53f130526fcb182c75c22",
};

/// Delete whatever is there, and leave a note of who did it if it was a lock: its value in the helper key, for as long as its
/// holder could go on, a minute at least. Answers the value of a lock, and of anything else only what it was: 0 for nothing, 1
/// for a string, 2 for another type. Deleting comes first: of an error nothing has come, and a server that is full takes
/// the note then. A user who may not write it removes without it. With a second argument, only this value: another one is left,
/// and answered as nothing.
pub const REMOVE: Script = Script {
    text: "local v=redis.pcall('GET',KEYS[1]) local other=false \
if type(v)=='table' then if v.err and string.find(v.err,'WRONGTYPE',1,true) then other=true else return v end end \
if not v or ARGV[2] and v~=ARGV[2] then return 0 end \
local ttl=redis.call('PTTL',KEYS[1]) redis.call('DEL',KEYS[1]) \
if other then return 2 end \
if string.sub(v,1,4)~='tn1:' or string.len(v)>256 then return 1 end \
ttl=math.min(math.max(ttl,60000),2592000000) \
redis.pcall('SET',KEYS[2],ARGV[1]..'.'..v,'PX',string.format('%d',ttl)) return v",
    sha: "6f5094e7694627e6018b1f0173631555cfde17b8",
};

/// How a script is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// By its SHA-1: `EVALSHA`.
    Sha,
    /// In full, which also caches it: `EVAL`.
    Text,
}

/// Errors that come before a script runs; after any other it may have written.
pub(super) fn script_may_have_run(error: ServerError) -> bool {
    !matches!(
        error,
        ServerError::NoScript | ServerError::Busy | ServerError::Loading | ServerError::NoAuth
    )
}

pub(super) fn call(script: &'static Script, sent: Sent) -> [Arg<'static>; 2] {
    match sent {
        Sent::Sha => ["EVALSHA".into(), script.sha.into()],
        Sent::Text => ["EVAL".into(), script.text.into()],
    }
}
