//! The items that stand in some bytes, found without judging them, to say why two parsers disagree.

pub(crate) struct Node {
    pub(crate) kind: u8,
    /// What stands on its line.
    pub(crate) line: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    /// Elements; keys and values in turn.
    pub(crate) inside: Vec<Node>,
    /// What an attribute is for.
    pub(crate) value: Option<Box<Node>>,
    complete: bool,
}

impl Node {
    /// The first item, with as much of what belongs to it as has arrived.
    pub(crate) fn first(bytes: &[u8]) -> Option<Self> {
        parse(bytes, &mut 0)
    }

    pub(crate) fn any(&self, test: &dyn Fn(&Self) -> bool) -> bool {
        test(self)
            || self.inside.iter().any(|node| node.any(test))
            || self.value.as_ref().is_some_and(|node| node.any(test))
    }

    /// Behind its attributes.
    pub(crate) fn bare(&self) -> &Self {
        self.value.as_ref().map_or(self, |value| value.bare())
    }

    pub(crate) fn is_aggregate(&self) -> bool {
        b"*~>%".contains(&self.bare().kind)
    }

    /// What a hash table would be asked to find: keys, or the members of a set.
    pub(crate) fn hashed(&self) -> Vec<&Self> {
        match self.kind {
            b'~' => self.inside.iter().collect(),
            b'%' | b'|' => self.inside.iter().step_by(2).collect(),
            _ => Vec::new(),
        }
    }
}

fn parse(bytes: &[u8], at: &mut usize) -> Option<Node> {
    let rest = bytes.get(*at..)?;
    let kind = *rest.first()?;
    let mut node = Node {
        kind,
        line: Vec::new(),
        payload: Vec::new(),
        inside: Vec::new(),
        value: None,
        complete: false,
    };
    let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else {
        return Some(node);
    };
    *at += end + 2;
    node.line = rest.get(1..end).unwrap_or_default().to_vec();
    node.complete = true;
    // No count means a scalar, or the null of RESP2.
    let Some(count) = std::str::from_utf8(&node.line)
        .ok()
        .and_then(|text| text.parse::<usize>().ok())
    else {
        return Some(node);
    };
    let elements = match kind {
        b'$' | b'!' | b'=' => {
            if let Some(payload) = at.checked_add(count).and_then(|end| bytes.get(*at..end)) {
                node.payload = payload.to_vec();
                *at += count + 2;
            } else {
                node.complete = false;
            }
            0
        }
        b'*' | b'~' | b'>' => count,
        b'%' | b'|' => count.saturating_mul(2),
        _ => 0,
    };
    for _ in 0..elements {
        let Some(element) = parse(bytes, at) else {
            node.complete = false;
            break;
        };
        node.complete = element.complete;
        node.inside.push(element);
        if !node.complete {
            break;
        }
    }
    if kind == b'|' && node.complete {
        node.value = parse(bytes, at).map(Box::new);
        node.complete = node.value.as_ref().is_some_and(|value| value.complete);
    }
    Some(node)
}
