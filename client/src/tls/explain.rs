//! What is wrong with a TLS connection, in words of which the first 200 characters reach a caller.

use std::io;
use std::path::Path;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, Error, OtherError};

use crate::error::{TLS_FAILED, TLS_REFUSED};

/// Trying again may help.
pub(super) fn failed(why: impl AsRef<str>) -> io::Error {
    io::Error::other(format!("{TLS_FAILED}{}", why.as_ref()))
}

/// Trying again does not help, until somebody changes something.
fn refused(why: impl AsRef<str>) -> io::Error {
    let text = format!("{TLS_REFUSED}{}", why.as_ref());
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Of an error in a handshake, or later, with the server of this name.
pub(super) fn error(error: &Error, name: Option<&ServerName<'_>>) -> io::Error {
    let name = name.map_or("the server".into(), ServerName::to_str);
    match error {
        Error::InvalidCertificate(error) => refused(certificate(error, &name)),
        Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired => {
                refused("the server wants a client certificate: set one with cert and key")
            }
            AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied => refused(format!(
                "the server does not take our certificate ({alert:?}): is it valid, and signed by an authority it trusts?"
            )),
            // What a server of TLS 1.2 says that wants a certificate, too.
            AlertDescription::HandshakeFailure => refused(
                "the server ends the handshake (HandshakeFailure): does it want a client certificate, or other ciphers?",
            ),
            AlertDescription::ProtocolVersion => {
                refused("the server speaks neither TLS 1.2 nor TLS 1.3")
            }
            AlertDescription::UnrecognisedName => {
                refused(format!("the server does not know the name {name}"))
            }
            alert => failed(format!("the server says {alert:?}")),
        },
        Error::InvalidMessage(_) => refused(
            "the peer does not speak TLS: is this the plain port, to be used with redis:// or valkey://?",
        ),
        Error::PeerIncompatible(why) => {
            refused(format!("nothing in common with the server: {why:?}"))
        }
        error => failed(error.to_string()),
    }
}

fn certificate(error: &CertificateError, name: &str) -> String {
    match error {
        // The latter, where a trusted authority has the same name: one that was made anew, mostly.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
            "the certificate of {name} is not signed by an authority that is trusted here: name its authority's file with ca"
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => format!(
            "the certificate of {name} has expired: renew it on the server, or set the clock of this machine"
        ),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => format!(
            "the certificate of {name} is not valid yet: set the clock of this machine, or that of its authority"
        ),
        CertificateError::NotValidForName => {
            format!("the certificate is not for {name}: set server_name to a name it is for")
        }
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names: Vec<&str> = presented.iter().take(3).map(|shown| plain(shown)).collect();
            match names.is_empty() {
                true => format!("the certificate is for no name at all, so not for {name}"),
                false => format!(
                    "the certificate is not for {name}: set server_name, it is for {}",
                    names.join(", ")
                ),
            }
        }
        CertificateError::Revoked => format!("the certificate of {name} is revoked"),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            format!("the certificate of {name} is not one for a server")
        }
        CertificateError::Other(OtherError(other)) => {
            format!("the certificate of {name} cannot be used: {other}")
        }
        other => format!("the certificate of {name} cannot be used: {other}"),
    }
}

/// `DnsName("a.example")` is how a name comes.
fn plain(shown: &str) -> &str {
    shown.split('"').nth(1).unwrap_or(shown)
}

/// Of a client certificate that cannot be used with its key.
pub(super) fn unfit(chain: &Path, key: &Path, error: &Error) -> String {
    match error {
        Error::InconsistentKeys(_) => format!(
            "the key in {} is not that of the first certificate in {}",
            key.display(),
            chain.display()
        ),
        error => format!(
            "{} and {} cannot be used: {error}",
            chain.display(),
            key.display()
        ),
    }
}
