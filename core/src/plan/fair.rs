//! First come, first served: the scripts of a fair lock, and what their replies mean.
//!
//! Those who wait stand in two sorted sets beside the key: by when they came, and by until when they are taken for alive. An entry
//! is the waiter's lease in milliseconds, a blank, and the value under which the key is passed on to it. Whoever releases
//! passes the key on to the first of them, so that it is never free while somebody waits; who is passed it takes it over. By when
//! somebody came is told as an age: whoever comes back after an outage or a flush has its old place.

use super::mint::minted;
use super::mint::refused_to_mint;
use super::{
    Dialect, Form, ReplyTo, Script, Sent, Verdict, failed, remaining, script_may_have_run,
};
use crate::error::ServerError;
use crate::lease::Outcome;
use crate::resp::Value;

/// Who does not wait any more is taken out: `ms` and `q`, `a` as in the scripts.
macro_rules! purged {
    () => {
        "for _,m in ipairs(redis.call('ZRANGEBYSCORE',a,'-inf',ms)) do \
redis.call('ZREM',q,m) redis.call('ZREM',a,m) end "
    };
}

/// The key to the waiter `h[1]`, who leaves the queue by it: if it does not come, it does not stand in the way again.
macro_rules! passed {
    () => {
        "local p,e=string.match(h[1],'^(%d+) (.+)$') \
redis.call('ZREM',q,h[1]) redis.call('ZREM',a,h[1]) redis.call('SET',KEYS[1],e,'PX',p) "
    };
}

/// The waiter `w` into the queue, or back to its place, with the ticket `s`; both sets end when all who are in them are taken
/// for dead.
macro_rules! joined {
    () => {
        "local p=string.match(w,'^(%d+) ') \
redis.call('ZADD',q,string.format('%.0f',s),w) redis.call('ZADD',a,string.format('%.0f',ms+p),w) \
local last=string.format('%.0f',redis.call('ZRANGE',a,-1,-1,'WITHSCORES')[2]) \
redis.call('PEXPIREAT',q,last) redis.call('PEXPIREAT',a,last) "
    };
}

/// The ticket of the waiter `w` of this age: when it came. A command that takes its time makes it later than it is, a clock that is
/// set back earlier, and those who come after that too: the earliest counts.
macro_rules! ticket {
    ($age:literal) => {
        concat!(
            "local s=now-",
            $age,
            " local was=tonumber(redis.call('ZSCORE',q,w) or nil) \
if was and was<s then s=was end "
        )
    };
}

/// Takes the key if it is free and nobody came before, or if it was passed on to the one who asks; else it asks to be waited
/// for. Keys: the lock, its queue, who is alive, the counter of fences. Arguments: the value, the lease in ms, the entry (none for
/// a single try, which does not wait), its age in us, and the floor of the fence (none for none).
///
/// Answers the fence, or 1; the value in the way with its TTL; 0 for a key of another type; and -1, -2, -3 as
/// [`MINT`](super::MINT). A free key is passed on to whoever came first. With a sixth argument, a queue in which so many wait already
/// takes in nobody who does not stand in it: then a 1 comes behind the TTL.
pub const TAKE: Script = Script {
    text: concat!(
        "local v=redis.pcall('GET',KEYS[1]) \
if type(v)=='table' then if v.err and string.find(v.err,'WRONGTYPE',1,true) then return 0 end return v end \
local q,a,w=KEYS[2],KEYS[3],ARGV[3] \
local t=redis.call('TIME') local now=t[1]*1000000+t[2] local ms=math.floor(now/1000) ",
        purged!(),
        "local h=redis.call('ZRANGE',q,0,0,'WITHSCORES') ",
        ticket!("ARGV[4]"),
        "local mine=v and v==string.match(w,' (.+)$') \
local first=not h[1] or h[1]==w or (w~='' and s<tonumber(h[2])) \
if mine or not v and first then local n=1 if ARGV[5]~='' then ",
        // The names of its own are in a block of their own.
        "local function fenced() ",
        minted!("KEYS[4]", "ARGV[5]"),
        "return n end n=fenced() if type(n)=='table' or n<0 then return n end end \
redis.call('SET',KEYS[1],ARGV[1],'PX',ARGV[2]) \
redis.call('ZREM',q,w) redis.call('ZREM',a,w) return n end \
if not v then ",
        passed!(),
        "v=e end if w~='' then \
if ARGV[6] and not was and redis.call('ZRANGE',q,ARGV[6]-1,ARGV[6]-1)[1] then return {v,redis.call('PTTL',KEYS[1]),1} end ",
        joined!(),
        "end return {v,redis.call('PTTL',KEYS[1])}"
    ),
    sha: "4543ef044d7526a57279444d2673341330d9cde6",
};

/// Gives the key up, if it has one of these values, or was passed on to this waiter: to the first who waits, if anybody does.
/// Keys: the lock, its queue, who is alive. Arguments: the entry of the one who leaves, the entry of who waits in the same
/// process and its age in us (none for none), how many values stand for the hold, and the values, those first.
///
/// Answers 1 if the key had a value of the hold. A server that is full refuses no write of a script that has written before, and
/// this one has: it releases.
pub const PASS: Script = Script {
    text: concat!(
        "local v=redis.pcall('GET',KEYS[1]) \
if type(v)=='table' then if not (v.err and string.find(v.err,'WRONGTYPE',1,true)) then return v end v=false end \
local q,a,w=KEYS[2],KEYS[3],ARGV[2] \
local t=redis.call('TIME') local now=t[1]*1000000+t[2] local ms=math.floor(now/1000) ",
        purged!(),
        "redis.call('ZREM',q,ARGV[1]) redis.call('ZREM',a,ARGV[1]) \
local found,held=v and v==string.match(ARGV[1],' (.+)$'),0 \
for i=5,#ARGV do if v==ARGV[i] then found=true if i<5+ARGV[4] then held=1 end end end \
if w~='' then ",
        ticket!("ARGV[3]"),
        joined!(),
        "end if found then local h=redis.call('ZRANGE',q,0,0) if h[1] then ",
        passed!(),
        "else redis.call('DEL',KEYS[1]) end end return held"
    ),
    sha: "d687bf145cec3ee33a60be2017e2c0811a047478",
};

impl Dialect {
    /// How to take a fair lock, or wait for one's turn.
    pub(super) fn taking(&self) -> Form {
        Form::Take(self.sent(self.known.take))
    }

    /// How to give one up.
    pub(super) fn passing(&self) -> Form {
        Form::Pass(self.sent(self.known.pass))
    }

    pub(super) fn judge_take<'a>(&mut self, sent: Sent, reply: &ReplyTo<'a, '_>) -> Verdict<'a> {
        if let Some(verdict) = judge_script(sent, &reply.value, &mut self.known.take, Form::Take) {
            return verdict;
        }
        match &reply.value {
            Value::Int(fence @ 1..) => Verdict::Minted(fence.unsigned_abs()),
            Value::Int(0) => failed(ServerError::WrongType, false),
            Value::Int(why) => refused_to_mint(*why),
            Value::Array(items) => {
                let mut items = items.iter();
                match (items.next(), items.next(), items.next()) {
                    (Some(Value::Bulk(shown)), Some(ttl), None) => {
                        Verdict::Refused(shown, remaining(&ttl))
                    }
                    (Some(Value::Bulk(shown)), Some(ttl), Some(_)) => {
                        Verdict::Full(shown, remaining(&ttl))
                    }
                    _ => failed(ServerError::Other, true),
                }
            }
            // No answer to this script: nobody knows what was executed.
            _ => failed(ServerError::Other, true),
        }
    }

    pub(super) fn judge_pass<'a>(&mut self, sent: Sent, reply: &ReplyTo<'a, '_>) -> Verdict<'a> {
        if let Some(verdict) = judge_script(sent, &reply.value, &mut self.known.pass, Form::Pass) {
            return verdict;
        }
        match reply.value.as_int() {
            Some(n) => Verdict::Done(Outcome::Cleared { mine: n > 0 }),
            None => failed(ServerError::Other, true),
        }
    }
}

/// What an error reply to a script leads to.
fn judge_script<'a>(
    sent: Sent,
    reply: &Value<'_>,
    known: &mut bool,
    form: fn(Sent) -> Form,
) -> Option<Verdict<'a>> {
    let Some(text) = reply.error() else {
        *known = true;
        return None;
    };
    let error = ServerError::of(text);
    *known &= error != ServerError::NoScript;
    Some(match (error, sent) {
        (ServerError::NoScript, Sent::Sha) => Verdict::Again(form(Sent::Text)),
        (error, _) => failed(error, script_may_have_run(error)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script that fails is not rolled back: without the counter nobody has the key, and whatever can refuse is read before.
    #[test]
    fn s14_h5_whatever_can_fail_is_read_before_the_key_is_written() {
        let granted = TAKE
            .text
            .find("redis.call('SET',KEYS[1]")
            .expect("the grant");
        let minted = TAKE
            .text
            .find("redis.call('SET',KEYS[4]")
            .expect("the fence");
        let (first, last) = (
            TAKE.text.find("redis.call('SET'"),
            TAKE.text.rfind("return -"),
        );
        assert!(first == Some(minted) && minted < granted && last < first);
    }

    #[test]
    fn no_helper_key_is_written_without_an_end() {
        for script in [&TAKE, &PASS] {
            let writes = script.text.matches("'ZADD'").count();
            let ends = script.text.matches("redis.call('PEXPIREAT'").count();
            assert_eq!((writes, ends), (2, 2));
            assert!(script.text.rfind("'ZADD'") < script.text.find("'PEXPIREAT'"));
        }
    }
}
