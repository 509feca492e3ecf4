//! TLS, once for every runtime: a [`Stream`](crate::binding::Stream) over the one of a binding.

mod binding;
mod explain;
mod stream;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::binding::Endpoint;
use crate::error::Error;
use crate::url::Query;

pub(crate) use binding::Secured;

/// How to do TLS: whom to trust, and who we are. For [`Config::tls`](crate::Config::tls); the URL of a `rediss://` or
/// `valkeys://` server has parameters for the same.
///
/// The certificate of the server is always checked: its chain, its dates and its name. TLS 1.2 and 1.3 are spoken. The
/// files are read when a client is made, so that what is wrong with them is said there, and again for every connection, so
/// that a certificate that was renewed in its place is used from the next connection on.
///
/// ```
/// # use tenure_client as tenure;
/// use tenure::{Config, Tls};
///
/// let tls = Tls::new()
///     .ca("/etc/redis/ca.pem")
///     .certificate("/etc/redis/worker.pem", "/etc/redis/worker.key")
///     .server_name("redis.internal");
/// let config = Config::from_url("rediss://10.0.0.7")?.tls(tls);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    ca: Option<PathBuf>,
    certificate: Option<(PathBuf, PathBuf)>,
    server_name: Option<String>,
}

impl Tls {
    /// The authorities of the system are trusted, no certificate is shown, and the name is that of the host.
    ///
    /// Where the system has its authorities differently, the variables `SSL_CERT_FILE` and `SSL_CERT_DIR` say where.
    pub fn new() -> Tls {
        Tls::default()
    }

    pub(crate) fn of_url(query: &Query) -> Tls {
        Tls {
            ca: query.ca.clone(),
            certificate: query.cert.clone().zip(query.key.clone()),
            server_name: query.server_name.clone(),
        }
    }

    /// Trusts the authorities in this PEM file and no others: that of one's own authority, mostly. A server certificate
    /// that nobody has signed goes here itself.
    #[must_use]
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Tls {
        self.ca = Some(file.into());
        self
    }

    /// Shows this certificate to a server that asks for one: PEM files with the chain, our own first, and with its private
    /// key, not encrypted.
    #[must_use]
    pub fn certificate(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Tls {
        self.certificate = Some((chain.into(), key.into()));
        self
    }

    /// The name or address that the certificate of the server must be for, instead of the host that is connected to.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Tls {
        self.server_name = Some(name.into());
        self
    }
}

/// What makes connections to one server.
#[derive(Debug)]
pub(crate) struct Connector {
    tls: Tls,
    name: ServerName<'static>,
    provider: Arc<CryptoProvider>,
    /// The authorities of the system, read once: it takes a while. Those of a file of one's own are read anew each time.
    system: Option<Arc<RootCertStore>>,
}

impl Connector {
    /// # Errors
    /// The server has no name to be checked, or a file cannot be used.
    pub(crate) fn new(tls: &Tls, endpoint: &Endpoint) -> Result<Connector, Error> {
        let connector = Connector {
            name: server_name(tls, endpoint)?,
            provider: Arc::new(ring::default_provider()),
            system: match tls.ca {
                None => Some(Arc::new(system_roots().map_err(Error::input)?)),
                Some(_) => None,
            },
            tls: tls.clone(),
        };
        connector.config().map_err(Error::input)?;
        Ok(connector)
    }

    /// For one connection. No session is resumed: each connection is checked in full.
    ///
    /// # Errors
    /// A file that was good when the client was made is so no more.
    fn connection(&self) -> io::Result<ClientConnection> {
        let config = self.config().map_err(explain::failed)?;
        ClientConnection::new(Arc::new(config), self.name.clone()).map_err(io::Error::other)
    }

    fn config(&self) -> Result<ClientConfig, String> {
        let roots = match (&self.system, &self.tls.ca) {
            (Some(system), _) => Arc::clone(system),
            (None, Some(file)) => Arc::new(roots_of(file)?),
            (None, None) => Arc::new(RootCertStore::empty()),
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let mut config = match &self.tls.certificate {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => builder
                .with_client_auth_cert(certificates_of(chain)?, key_of(key)?)
                .map_err(|error| explain::unfit(chain, key, &error))?,
        };
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

fn server_name(tls: &Tls, endpoint: &Endpoint) -> Result<ServerName<'static>, Error> {
    let name = match (&tls.server_name, endpoint) {
        (Some(name), _) => name.clone(),
        (None, Endpoint::Tcp { host, .. }) => host.clone(),
        (None, Endpoint::Unix { .. }) => {
            return Err(Error::input(
                "TLS over a Unix socket needs a server name: there is no host to check a certificate for",
            ));
        }
    };
    ServerName::try_from(name).map_err(|_| {
        Error::input(
            "the server name for TLS is neither a host name nor an address: set it with server_name",
        )
    })
}

fn system_roots() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // One that cannot be read, or is of a kind that is not known, does no harm to the others.
    roots.add_parsable_certificates(found.certs);
    match roots.is_empty() {
        false => Ok(roots),
        true => Err(
            "this system has no certificate authorities to trust: install them (ca-certificates), or name a file with ca"
                .to_owned(),
        ),
    }
}

fn roots_of(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_of(file)? {
        let added = roots.add(certificate);
        added.map_err(|error| format!("{} has a bad certificate: {error}", file.display()))?;
    }
    Ok(roots)
}

fn certificates_of(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = read(file)?;
    let certificates: Result<Vec<_>, PemError> = CertificateDer::pem_slice_iter(&text).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        // The parser's own words may repeat the file.
        _ => Err(format!("{} holds no certificate in PEM", file.display())),
    }
}

fn key_of(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(&read(file)?).map_err(|_| {
        format!(
            "{} holds no private key in PEM that is not encrypted",
            file.display()
        )
    })
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| format!("{} cannot be read: {error}", file.display()))
}
