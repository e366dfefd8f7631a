//! Callers other than root: refused without a polkit rule, allowed with one.

use std::{fs, process::Command};

use futures_util::StreamExt as _;
use tokio::time::timeout;
use zbus::{Connection, MatchRule, MessageStream, message};

use crate::service::{LIMIT, Service};

const NOBODY: u32 = 65534;
const RULES: &str = "/etc/polkit-1/rules.d/10-lab.rules";
const RULE: &str = r#"
polkit.addRule(function(action, subject) {
    var own = ["org.vgpu.host1.create", "org.vgpu.host1.remove"];
    if (own.indexOf(action.id) >= 0 && subject.user == "nobody") {
        return polkit.Result.YES;
    }
});
"#;

/// A call by `busctl` as nobody: what it says, or its error.
fn as_nobody(path: &str, interface: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("setpriv")
        .args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"])
        .args(["busctl", "--system", "call", "org.vgpu.Host1", path, interface])
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn create() -> Result<String, String> {
    as_nobody(
        "/org/vgpu/Host1",
        "org.vgpu.Host1.Manager",
        &["CreateVgpu", "sa{sv}", "mtty-1", "1", "gpu", "s", "mtty"],
    )
}

/// Puts a rule in place or takes it away, and returns once polkitd has noticed.
async fn change_rules(bus: &Connection, rule: Option<&str>) {
    let changed = MatchRule::builder()
        .msg_type(message::Type::Signal)
        .interface("org.freedesktop.PolicyKit1.Authority")
        .member("Changed")
        .build()
        .unwrap();
    let mut noticed = MessageStream::for_match_rule(changed, bus, None).await.unwrap();
    match rule {
        // Whole at once: polkitd reads it as soon as it is there.
        Some(rule) => {
            fs::write("/etc/polkit-1/lab.new", rule).unwrap();
            fs::rename("/etc/polkit-1/lab.new", RULES).unwrap();
        }
        None => fs::remove_file(RULES).unwrap(),
    }
    timeout(LIMIT, noticed.next()).await.expect("polkitd notices").unwrap().unwrap();
}

#[tokio::test]
async fn a_rule_lets_a_user_make_its_own() {
    let service = Service::start().await;
    let refused = |result: Result<String, String>| {
        let error = result.expect_err("it was allowed");
        assert!(error.contains("Access denied") || error.contains("not authorized"), "{error}");
    };
    refused(create());
    refused(as_nobody(
        service.gpu("0000:01:00.0").await.inner().path().as_str(),
        "org.vgpu.Host1.Gpu",
        &["SetVfCount", "ua{sv}", "1", "0"],
    ));
    assert_eq!(service.gpu("0000:01:00.0").await.vf_count().await.unwrap(), 0);

    change_rules(&service.bus, Some(RULE)).await;
    let made = create().unwrap();
    let path = made.split('"').nth(1).unwrap();
    let vgpu = service.vgpu(&path.to_owned().try_into().unwrap()).await;
    assert_eq!(vgpu.owner_uid().await.unwrap(), NOBODY);
    for (_, node) in vgpu.nodes().await.unwrap() {
        let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(&node).unwrap());
        assert_eq!(owner, NOBODY, "{node}");
    }
    // Not what is another's, nor what no rule allows.
    let roots = service.create("mtty", "mtty-1").await;
    let remove = |path: &str| as_nobody(path, "org.vgpu.Host1.Vgpu", &["Remove", "a{sv}", "0"]);
    refused(remove(roots.as_str()));
    refused(as_nobody(path, "org.vgpu.Host1.Vgpu", &["Probe"]));
    remove(path).unwrap();
    service.remove(&roots).await;

    change_rules(&service.bus, None).await;
    refused(create());
    service.stop().await;
}
