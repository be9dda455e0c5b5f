//! The envelope of every small file: `anebake <kind> <sha256 of the body>\n<body>`, body JSON. A file that is short,
//! garbled, of another kind or altered in any byte does not open.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Digest;

/// What a sealed file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seal {
    Action,
    Signature,
    Digests,
    Output,
    Subject,
}

impl Seal {
    fn as_str(self) -> &'static str {
        match self {
            Self::Action => "action",
            Self::Signature => "signature",
            Self::Digests => "source digests",
            Self::Output => "output",
            Self::Subject => "subject",
        }
    }

    /// The file's bytes.
    pub(super) fn close(self, body: &impl Serialize) -> serde_json::Result<Vec<u8>> {
        let body = serde_json::to_vec(body)?;
        let mut bytes = format!("anebake {} {}\n", self.as_str(), Digest::of(&body)).into_bytes();
        bytes.extend_from_slice(&body);
        Ok(bytes)
    }

    /// The body, if the seal is whole and the body is a `T`.
    pub(super) fn open<T: DeserializeOwned>(self, bytes: &[u8]) -> Option<T> {
        serde_json::from_slice(self.body(bytes)?).ok()
    }

    /// The body's bytes, if the seal is whole.
    pub(super) fn body(self, bytes: &[u8]) -> Option<&[u8]> {
        let rest = bytes.strip_prefix(b"anebake ")?.strip_prefix(self.as_str().as_bytes())?.strip_prefix(b" ")?;
        let (digest, rest) = rest.split_at_checked(64)?;
        let body = rest.strip_prefix(b"\n")?;
        let digest: Digest = std::str::from_utf8(digest).ok()?.parse().ok()?;
        (Digest::of(body) == digest).then_some(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_flipped_bit_truncation_or_other_kind_breaks_the_seal() {
        let sealed = Seal::Action.close(&vec![1, 22, 333]).unwrap();
        assert_eq!(Seal::Action.open::<Vec<u32>>(&sealed), Some(vec![1, 22, 333]));
        assert_eq!(Seal::Output.open::<Vec<u32>>(&sealed), None);
        for length in 0..sealed.len() {
            assert_eq!(Seal::Action.open::<Vec<u32>>(&sealed[..length]), None, "{length} bytes");
        }
        for bit in 0..8 * sealed.len() {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Seal::Action.open::<Vec<u32>>(&flipped), None, "bit {bit}");
        }
    }
}
