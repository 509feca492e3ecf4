//! The script that grants with a fence, and what its replies mean.

use super::{Dialect, Form, ReplyTo, Script, Sent, Verdict, failed, refused, script_may_have_run};
use crate::error::{Failure, ServerError};
use crate::fence::FenceFault;
use crate::lease::{OpKind, Outcome};
use crate::resp::Value;

/// Compare, mint, write: the key must be free, or have the fourth argument for its value. Then the fence that
/// [`mint`](crate::fence::mint) gives is written to the helper key, to be kept until an absolute time, and the value with its
/// TTL to the key. Answers the fence; the value that was in the way, nothing where the one to replace is gone, 0 for a key of
/// another type; and -1, -2, -3 for a floor or a counter that is too far ahead, and for what is no counter.
///
/// Whatever can fail is read before anything is written, and the counter is written before the key: what fails in between has
/// granted nothing.
pub const MINT: Script = Script {
    text: concat!(
        "local v=redis.pcall('GET',KEYS[1]) \
if type(v)=='table' then if v.err and string.find(v.err,'WRONGTYPE',1,true) then return 0 end return v end \
if v~=(ARGV[4] or false) then return v end \
local t=redis.call('TIME') local now=t[1]*1000000+t[2] ",
        minted!("KEYS[2]", "ARGV[3]"),
        "redis.call('SET',KEYS[1],ARGV[1],'PX',ARGV[2]) return n"
    ),
    sha: "79415f40bab6db6185a1125d3d7b0340467e099e",
};

/// The part of a script that leaves a fence in `n`, and with the helper key, where `now` is the server's time; or returns why
/// not.
macro_rules! minted {
    ($counter:literal, $floor:literal) => {
        concat!(
            "local most=math.min(now+86400000000,9007199254740990) local floor=tonumber(",
            $floor,
            ") local c=redis.pcall('GET',",
            $counter,
            ") \
if type(c)=='table' then if c.err and string.find(c.err,'WRONGTYPE',1,true) then return -3 end return c end \
if c and not string.find(c,'^%d+$') then return -3 end \
c=tonumber(c or 0) if floor>most then return -1 end \
if c>most or now>9007199254740991 then return -2 end \
local n=math.max(c+1,floor+1,now) \
redis.call('SET',",
            $counter,
            ",string.format('%.0f',n),'PXAT',string.format('%.0f',math.ceil(n/1000)+86400000)) "
        )
    };
}
pub(super) use minted;

impl Dialect {
    /// How to put an operation that mints a fence.
    pub(super) fn minting(&self) -> Form {
        Form::Mint(self.sent(self.known.mint))
    }

    pub(super) fn judge_mint<'a>(
        &mut self,
        sent: Sent,
        kind: OpKind,
        reply: &ReplyTo<'a, '_>,
    ) -> Verdict<'a> {
        if let Some(text) = reply.value.error() {
            let error = ServerError::of(text);
            self.known.mint &= error != ServerError::NoScript;
            return match (error, sent) {
                (ServerError::NoScript, Sent::Sha) => Verdict::Again(Form::Mint(Sent::Text)),
                (error, _) => failed(error, script_may_have_run(error)),
            };
        }
        self.known.mint = true;
        let adopts = matches!(kind, OpKind::Adopt { .. });
        match reply.value {
            Value::Int(fence @ 1..) => Verdict::Minted(fence.unsigned_abs()),
            // The key has another type: what was to be adopted is not there any more.
            Value::Int(0) if adopts => refused(None),
            Value::Int(0) => failed(ServerError::WrongType, false),
            Value::Int(why) => refused_to_mint(why),
            Value::Bulk(shown) => Verdict::Shown(shown),
            // RESP2 answers a Lua false with a null, RESP3 may answer it with false.
            Value::Null | Value::Bool(false) if adopts => Verdict::Done(Outcome::Gone),
            _ => failed(ServerError::Other, true),
        }
    }
}

/// Why no fence was minted, by the number that the script answers. Nothing was written.
pub(super) fn refused_to_mint(why: i64) -> Verdict<'static> {
    let fault = match why {
        -1 => FenceFault::Floor,
        -2 => FenceFault::Counter,
        -3 => FenceFault::Foreign,
        _ => return failed(ServerError::Other, true),
    };
    Verdict::Done(Outcome::Failed {
        failure: Failure::Fence(fault),
        maybe_executed: false,
    })
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// Where each call of a server is in the text.
    fn calls(of: &str) -> Vec<usize> {
        MINT.text.match_indices(of).map(|(at, _)| at).collect()
    }

    /// A script that fails is not rolled back: on real servers each of these errors left the key behind before.
    #[test]
    fn s14_h5_whatever_can_fail_is_read_before_anything_is_written() {
        let (writes, last_answer) = (calls("redis.call('SET'"), MINT.text.rfind("return -"));
        let reads = [calls("'GET'"), calls("redis.call('TIME')")].concat();
        assert_eq!((writes.len(), reads.len()), (2, 3));
        assert!(reads.iter().max() < writes.first());
        assert!(last_answer < writes.first().copied());
        // Without the counter nobody has the key.
        assert!(MINT.text[writes[0]..].starts_with("redis.call('SET',KEYS[2]"));
        assert!(MINT.text[writes[1]..].starts_with("redis.call('SET',KEYS[1]"));
    }

    /// Kept until a time that the fence itself says, and not for a time from now: a clock that is set back cannot outlast
    /// it. The digits are never those of a double.
    #[test]
    fn s14_h4_the_counter_expires_at_the_time_of_its_fence_and_a_day() {
        let kept = "'PXAT',string.format('%.0f',math.ceil(n/1000)+86400000)";
        assert!(MINT.text.contains(kept));
        assert!(
            MINT.text
                .contains("SET',KEYS[2],string.format('%.0f',n),'PXAT'")
        );
    }
}
