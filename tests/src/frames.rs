//! Counting whole frames in a stream of RESP bytes, however they are cut up.

/// Counts frames: commands one way, replies and pushes the other.
#[derive(Clone, Debug, Default)]
pub struct FrameCounter {
    line: Vec<u8>,
    body: u64,
    // How many elements each open aggregate still wants.
    open: Vec<u64>,
    frames: u64,
}

impl FrameCounter {
    /// Takes more bytes and returns how many frames have ended in all.
    pub fn feed(&mut self, mut bytes: &[u8]) -> u64 {
        while let Some(&byte) = bytes.first() {
            if self.body > 0 {
                let skipped = bytes
                    .len()
                    .min(usize::try_from(self.body).unwrap_or(usize::MAX));
                bytes = &bytes[skipped..];
                self.body -= skipped as u64;
                if self.body == 0 {
                    self.end_element();
                }
                continue;
            }
            bytes = &bytes[1..];
            self.line.push(byte);
            if byte == b'\n' {
                self.end_line();
                self.line.clear();
            }
        }
        self.frames
    }

    fn end_line(&mut self) {
        let text = String::from_utf8_lossy(&self.line[1..]);
        let count = text.trim_end().parse::<u64>().unwrap_or(0);
        match self.line[0] {
            b'*' | b'~' | b'>' if count > 0 => self.open.push(count),
            b'%' if count > 0 => self.open.push(2 * count),
            // An attribute comes before the value it belongs to and is part of the same frame.
            b'|' => match self.open.last_mut() {
                Some(open) => *open += 2 * count,
                None => self.open.push(2 * count + 1),
            },
            b'$' | b'=' | b'!' if !text.starts_with('-') => self.body = count + 2,
            _ => self.end_element(),
        }
    }

    fn end_element(&mut self) {
        while let Some(open) = self.open.last_mut() {
            *open -= 1;
            if *open > 0 {
                return;
            }
            self.open.pop();
        }
        self.frames += 1;
    }
}

/// Takes the first whole command out of a buffer.
///
/// # Errors
/// When the buffer does not begin with a command as every client sends them.
pub fn take_command(buffer: &mut Vec<u8>) -> Result<Option<Vec<Vec<u8>>>, String> {
    let mut at = 0;
    let Some(count) = take_number(buffer, &mut at, b'*')? else {
        return Ok(None);
    };
    let mut args = Vec::new();
    for _ in 0..count {
        let Some(length) = take_number(buffer, &mut at, b'$')? else {
            return Ok(None);
        };
        let Some(argument) = buffer.get(at..at + length + 2) else {
            return Ok(None);
        };
        args.push(argument[..length].to_vec());
        at += length + 2;
    }
    buffer.drain(..at);
    Ok(Some(args))
}

fn take_number(buffer: &[u8], at: &mut usize, kind: u8) -> Result<Option<usize>, String> {
    let rest = &buffer[*at..];
    match rest.first() {
        None => return Ok(None),
        Some(&first) if first != kind => return Err(format!("a byte {first} in place of {kind}")),
        Some(_) => {}
    }
    let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&rest[1..end]);
    *at += end + 1;
    let number = text.trim_end().parse::<usize>();
    number
        .map(Some)
        .map_err(|error| format!("{text:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_whole_or_in_pieces() {
        let stream: &[u8] = b"+OK\r\n-ERR x\r\n:1\r\n$2\r\nhi\r\n$-1\r\n_\r\n$0\r\n\r\n\
            *2\r\n$1\r\n*\r\n*1\r\n:2\r\n*0\r\n*-1\r\n%1\r\n+a\r\n*2\r\n:1\r\n:2\r\n\
            >2\r\n+invalidate\r\n*1\r\n+k\r\n|1\r\n+a\r\n:1\r\n:5\r\n";
        assert_eq!(FrameCounter::default().feed(stream), 13);
        let mut counter = FrameCounter::default();
        for byte in stream {
            counter.feed(&[*byte]);
        }
        assert_eq!(counter.feed(b""), 13);
    }

    #[test]
    fn commands_are_taken_one_at_a_time() {
        let mut buffer = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$4\r\nPI".to_vec();
        assert_eq!(
            take_command(&mut buffer).unwrap().unwrap(),
            [b"GET".to_vec(), b"k".to_vec()]
        );
        assert_eq!(take_command(&mut buffer), Ok(None));
        buffer.extend_from_slice(b"NG\r\n");
        assert_eq!(
            take_command(&mut buffer).unwrap().unwrap(),
            [b"PING".to_vec()]
        );
        assert!(buffer.is_empty());
        assert!(take_command(&mut b"GET / HTTP/1.1\r\n".to_vec()).is_err());
    }
}
