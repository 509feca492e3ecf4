//! Certificates, made when they are needed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};

use crate::Failure;

/// An authority that signs.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its private key, as PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

impl Authority {
    /// A new one. All of them have the same name.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new() -> Result<Self, Failure> {
        Self::named("an authority of a test")
    }

    /// A new one with a name of its own.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn named(name: &str) -> Result<Self, Failure> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            pem,
        })
    }

    /// Its certificate, as PEM.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// For a server with these names or addresses.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn server(&self, names: &[&str]) -> Result<Pair, Failure> {
        let params = params(names, ExtendedKeyUsagePurpose::ServerAuth)?;
        self.sign(&params)
    }

    /// As [`Self::server`], expired for years.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn expired(&self, names: &[&str]) -> Result<Pair, Failure> {
        let mut params = params(names, ExtendedKeyUsagePurpose::ServerAuth)?;
        params.not_before = date_time_ymd(2019, 1, 1);
        params.not_after = date_time_ymd(2020, 1, 1);
        self.sign(&params)
    }

    /// For a client.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn client(&self) -> Result<Pair, Failure> {
        let params = params(&["client.test"], ExtendedKeyUsagePurpose::ClientAuth)?;
        self.sign(&params)
    }

    /// Writes its certificate into a folder.
    ///
    /// # Errors
    /// When the folder takes no file.
    pub fn write(&self, folder: &Path, name: &str) -> io::Result<PathBuf> {
        let path = folder.join(name);
        fs::write(&path, &self.pem)?;
        Ok(path)
    }

    fn sign(&self, params: &CertificateParams) -> Result<Pair, Failure> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Pair {
            certificate,
            key: key.serialize_pem(),
        })
    }
}

impl Pair {
    /// Writes certificate and key into a folder.
    ///
    /// # Errors
    /// When the folder takes no file.
    pub fn write(&self, folder: &Path, name: &str) -> io::Result<(PathBuf, PathBuf)> {
        let certificate = folder.join(format!("{name}.pem"));
        let key = folder.join(format!("{name}.key"));
        fs::write(&certificate, &self.certificate)?;
        fs::write(&key, &self.key)?;
        Ok((certificate, key))
    }
}

fn params(names: &[&str], purpose: ExtendedKeyUsagePurpose) -> Result<CertificateParams, Failure> {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names)?;
    params.extended_key_usages.push(purpose);
    params.distinguished_name.push(DnType::CommonName, "tenure");
    Ok(params)
}
