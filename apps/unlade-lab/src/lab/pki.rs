//! The lab's own certificates: one authority that clients trust (it signs `objects.lab`), one
//! that the balancer and the servers trust among themselves. ECDSA P-256, PEM files.

use super::plan::{DIRECT_HOSTS, FIXED_HOSTS, HOST, HOST_V6, Node, Plan, SEALED_HOST};
use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use unlade_channel::role::BALANCER_ROLE;

/// File with the key of the rules for direct return.
pub const RULES_KEY: &str = "rules.key";

/// Writes every certificate and key below the lab's `pki` directory.
///
/// # Errors
/// A name is refused by the certificate library or a file cannot be written.
pub fn create(plan: &Plan) -> Result<()> {
    let dir = plan.pki("");
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;

    let public = authority("Unlade lab CA")?;
    write(&plan.pki("ca.crt"), &public.pem(), 0o644)?;
    let ips = [IpAddr::V4(plan.virtual_v4()), IpAddr::V6(plan.virtual_v6())];
    let server = [ExtendedKeyUsagePurpose::ServerAuth];
    let mut names = vec![HOST, HOST_V6];
    names.extend(FIXED_HOSTS.map(|(host, ..)| host));
    names.extend(DIRECT_HOSTS.map(|(host, ..)| host));
    names.push(SEALED_HOST);
    let (certificate, key) = issue(&public, HOST, &names, &ips, &server)?;
    write(&plan.pki("objects.crt"), &certificate, 0o644)?;
    write(&plan.pki("objects.key"), &key, 0o600)?;
    // HAProxy reads both from one file.
    write(&plan.pki("objects.pem"), &(certificate + &key), 0o600)?;

    let mut rules = [0u8; 16];
    fs::File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut rules))
        .context("a key for rules")?;
    let digits: String = rules.iter().map(|byte| format!("{byte:02x}")).collect();
    write(&plan.pki(RULES_KEY), &digits, 0o600)?;

    let pool = authority("Unlade lab pool CA")?;
    write(&plan.pki("pool-ca.crt"), &pool.pem(), 0o644)?;
    // To issue certificates for further members.
    write(&plan.pki("pool-ca.key"), &pool.key().serialize_pem(), 0o600)?;
    for node in plan.nodes().filter(|&node| node != Node::Client) {
        let name = format!("{node}.lab");
        let ips = [IpAddr::V4(plan.address_v4(node)), IpAddr::V6(plan.address_v6(node))];
        // Members of one pool with different rights: only the balancer may hand connections over.
        let (certificate, key) = match node {
            Node::Lb => {
                let client = [ExtendedKeyUsagePurpose::ClientAuth];
                issue_as(&pool, &name, &[&name], &ips, &client, Some(BALANCER_ROLE))?
            }
            _ => issue(&pool, &name, &[&name], &ips, &server)?,
        };
        write(&plan.pki(&format!("{node}.crt")), &certificate, 0o644)?;
        write(&plan.pki(&format!("{node}.key")), &key, 0o600)?;
    }
    Ok(())
}

fn authority(name: &str) -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    CertifiedIssuer::self_signed(params, key).with_context(|| format!("creating {name}"))
}

/// A certificate and its key, both as PEM.
fn issue(
    authority: &CertifiedIssuer<'static, KeyPair>,
    name: &str,
    dns: &[&str],
    ips: &[IpAddr],
    usages: &[ExtendedKeyUsagePurpose],
) -> Result<(String, String)> {
    issue_as(authority, name, dns, ips, usages, None)
}

/// As [`issue`], with a role, which is a URI.
fn issue_as(
    authority: &CertifiedIssuer<'static, KeyPair>,
    name: &str,
    dns: &[&str],
    ips: &[IpAddr],
    usages: &[ExtendedKeyUsagePurpose],
    role: Option<&str>,
) -> Result<(String, String)> {
    let names: Vec<String> = dns.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names)?;
    params.subject_alt_names.extend(ips.iter().map(|&ip| SanType::IpAddress(ip)));
    if let Some(role) = role {
        params.subject_alt_names.push(SanType::URI(role.try_into()?));
    }
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = usages.to_vec();
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let certificate =
        params.signed_by(&key, authority).with_context(|| format!("issuing {name}"))?;
    Ok((certificate.pem(), key.serialize_pem()))
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    let options = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path);
    options
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("writing {}", path.display()))
}
