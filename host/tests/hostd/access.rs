//! Who may do what, with a polkit on the bus and without one.

use vgpu_mdev::sys::NodePath;

use crate::{
    authority::Authority,
    bus::{Bus, MANAGER, Options, ROOT, VGPU, create, options, property, remove},
    served::Served,
};

/// Two users that every host has, daemon and nobody: the bus takes no unknown
/// ones.
const ALICE: u32 = 1;
const BOB: u32 = 65_534;

/// CreateVgpu by a user: its path.
fn create_as(bus: &Bus, uid: u32, arguments: &[&str]) -> Result<String, String> {
    let mut all = vec![ROOT, MANAGER, "CreateVgpu", "sa{sv}"];
    all.extend(arguments);
    let answer = bus.call_as(uid, &all)?;
    Ok(answer.split('"').nth(1).unwrap().to_owned())
}

fn remove_as(bus: &Bus, uid: u32, vgpu: &str, options: &[&str]) -> Result<String, String> {
    let mut all = vec![vgpu, VGPU, "Remove", "a{sv}"];
    all.extend(options);
    bus.call_as(uid, &all)
}

#[tokio::test(flavor = "multi_thread")]
async fn without_polkit_root_alone_may() {
    let bus = Bus::start();
    let _served = Served::start(&bus);
    let connection = bus.connect().await;
    let refused = create_as(&bus, ALICE, &["mtty-1", "0"]).unwrap_err();
    assert!(refused.contains("Access denied") || refused.contains("1"), "{refused}");
    // busctl keeps the error's text to itself.
    let output = std::process::Command::new("setpriv")
        .args([&format!("--reuid={ALICE}"), &format!("--regid={ALICE}"), "--clear-groups"])
        .args(["dbus-send", &format!("--bus={}", bus.address), "--print-reply"])
        .args(["--dest=org.vgpu.Host1", ROOT, &format!("{MANAGER}.Rescan")])
        .output()
        .unwrap();
    let refused = String::from_utf8(output.stderr).unwrap();
    let why = "user 1 lacks the authorization org.vgpu.host1.configure-gpu: polkit does not run, \
               so that only root may do this; start polkit";
    assert!(refused.contains(why), "{refused}");
    // Reading is for everyone.
    let listed = bus.call_as(ALICE, &[ROOT, MANAGER, "ListGpus"]).unwrap();
    assert!(listed.starts_with("a(ssssssuuu) 7 "), "{listed}");
    let vgpu = create(&connection, "mtty-1", Options::new()).await;
    remove(&connection, &vgpu).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_owns_and_removes_what_it_made() {
    let bus = Bus::start();
    let served = Served::start(&bus);
    let authority = Authority::allowing(&bus, &["create", "remove"]).await;
    let connection = bus.connect().await;

    let vgpu = create_as(&bus, ALICE, &["mtty-1", "1", "gpu", "s", "mtty"]).unwrap();
    let asked = authority.questions();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].subject.0, "system-bus-name");
    assert!(asked[0].subject.1.starts_with(':'), "{asked:?}");
    assert_eq!(asked[0].action, "create");
    assert_eq!(asked[0].details["gpu"], "mtty");
    assert_eq!(asked[0].details["profile"], "mtty-1");
    assert_eq!(property::<u32>(&connection, &vgpu, VGPU, "OwnerUid").await, ALICE);
    // Its node is its owner's.
    let group: i32 = property(&connection, &vgpu, VGPU, "IommuGroup").await;
    let node = NodePath::new(format!("vfio/{group}")).unwrap();
    assert_eq!(served.kernel.owner(&node), Some(ALICE));

    let refused = remove_as(&bus, BOB, &vgpu, &["0"]).unwrap_err();
    assert_eq!(authority.actions(), ["remove", "manage-others"], "{refused}");
    remove_as(&bus, ALICE, &vgpu, &["0"]).unwrap();
    assert_eq!(authority.actions(), ["remove"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_ones_own_needs_more() {
    let bus = Bus::start();
    let _served = Served::start(&bus);
    let authority = Authority::allowing(&bus, &["create", "remove", "open-device"]).await;
    let connection = bus.connect().await;

    // For somebody else.
    create_as(&bus, ALICE, &["mtty-1", "1", "owner-uid", "u", "65534"]).unwrap_err();
    assert_eq!(authority.actions(), ["create", "manage-others"]);
    // For oneself, said aloud.
    let own = create_as(&bus, ALICE, &["mtty-1", "1", "owner-uid", "u", "1"]).unwrap();
    assert_eq!(authority.actions(), ["create"]);
    // Changing the GPU.
    create_as(&bus, ALICE, &["flex-140-vf", "1", "enable-vfs", "b", "true"]).unwrap_err();
    assert_eq!(authority.actions(), ["create", "configure-gpu"]);
    // Under the UUID of another's.
    let uuid = "33333333-2222-4333-8444-555555555555";
    create(&connection, "mtty-1", options([("uuid", uuid.into())])).await;
    create_as(&bus, ALICE, &["mtty-1", "1", "uuid", "s", uuid]).unwrap_err();
    assert_eq!(authority.actions(), ["create", "manage-others"]);
    // By force.
    remove_as(&bus, ALICE, &own, &["1", "force", "b", "true"]).unwrap_err();
    assert_eq!(authority.actions(), ["remove", "force"]);
    // Opening is the owner's.
    bus.call_as(ALICE, &[&own, VGPU, "Probe"]).unwrap();
    assert_eq!(authority.actions(), ["open-device"]);
    bus.call_as(BOB, &[&own, VGPU, "Probe"]).unwrap_err();
    assert_eq!(authority.actions(), ["open-device", "manage-others"]);
    // Looking is the owner's, or needs inspect.
    bus.call_as(ALICE, &[&own, VGPU, "GetHolders"]).unwrap();
    assert!(authority.actions().is_empty());
    bus.call_as(BOB, &[&own, VGPU, "GetHolders"]).unwrap_err();
    assert_eq!(authority.actions(), ["inspect"]);
    // By its pid nobody owns a process: that needs it always.
    for user in [ALICE, BOB] {
        bus.call_as(user, &[ROOT, MANAGER, "GetVgpuByPid", "u", "1"]).unwrap_err();
        assert_eq!(authority.actions(), ["inspect"]);
    }
    // The host is an administrator's.
    bus.call_as(ALICE, &[ROOT, MANAGER, "Rescan"]).unwrap_err();
    let gpu = "/org/vgpu/Host1/gpus/pci_0000_41_00_0";
    let set = [gpu, "org.vgpu.Host1.Gpu", "SetVfCount", "ua{sv}", "2", "0"];
    bus.call_as(ALICE, &set).unwrap_err();
    assert_eq!(authority.actions(), ["configure-gpu", "configure-gpu"]);
    // Root is never asked about.
    remove(&connection, &own).await;
    assert!(authority.actions().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_it_is_for_those_who_may_look() {
    let bus = Bus::start();
    let served = Served::start(&bus);
    let authority = Authority::allowing(&bus, &["remove", "manage-others"]).await;
    let connection = bus.connect().await;
    let vgpu = create(&connection, "mtty-1", options([("owner-uid", ALICE.into())])).await;
    let group: i32 = property(&connection, &vgpu, VGPU, "IommuGroup").await;
    let node = NodePath::new(format!("vfio/{group}")).unwrap();
    let _held = served.kernel.hold(&node, 4242, "qemu-secret").unwrap();

    let failed = crate::bus::call(&connection, &vgpu, VGPU, "Remove", &(Options::new(),)).await;
    let failed = failed.unwrap_err();
    assert_eq!(failed.name, "org.vgpu.Host1.Error.Busy");
    let holder: (u32, String) = failed.details["Holder"].try_clone().unwrap().try_into().unwrap();
    assert_eq!(holder, (4242, "qemu-secret".into()));
    assert!(failed.text.contains("held by process 4242, qemu-secret"), "{}", failed.text);

    let owner = remove_as(&bus, ALICE, &vgpu, &["0"]).unwrap_err();
    assert!(owner.contains("process 4242, qemu-secret"), "{owner}");
    let other = remove_as(&bus, BOB, &vgpu, &["0"]).unwrap_err();
    assert!(other.contains("held by a process") && !other.contains("4242"), "{other}");
    assert!(!other.contains("qemu-secret"), "{other}");
    // The question whether Bob may see it asks nobody for a password.
    let asked = authority.questions();
    let inspect: Vec<_> = asked.iter().filter(|question| question.action == "inspect").collect();
    assert_eq!(inspect.len(), 1);
    assert!(!inspect[0].interactive);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_interactive_when_the_call_allows_it() {
    let bus = Bus::start();
    let _served = Served::start(&bus);
    let authority = Authority::allowing(&bus, &["create"]).await;
    for (allowed, flag) in [(false, "no"), (true, "yes")] {
        let option = format!("--allow-interactive-authorization={flag}");
        create_as_with(&bus, &option);
        let asked = authority.questions();
        assert_eq!(asked.len(), 1);
        assert_eq!(asked[0].interactive, allowed, "{flag}");
    }
}

fn create_as_with(bus: &Bus, option: &str) {
    let output = std::process::Command::new("setpriv")
        .args([&format!("--reuid={ALICE}"), &format!("--regid={ALICE}"), "--clear-groups"])
        .args(["busctl", &format!("--address={}", bus.address), option])
        .args(["call", "org.vgpu.Host1", ROOT, MANAGER, "CreateVgpu", "sa{sv}", "mtty-1", "0"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// A name on the bus that nobody but root may take.
#[tokio::test]
async fn only_root_takes_the_name() {
    let bus = Bus::start();
    let refused = std::process::Command::new("setpriv")
        .args([&format!("--reuid={ALICE}"), &format!("--regid={ALICE}"), "--clear-groups"])
        .args(["busctl", &format!("--address={}", bus.address), "call", "org.freedesktop.DBus"])
        .args(["/org/freedesktop/DBus", "org.freedesktop.DBus", "RequestName", "su"])
        .args(["org.vgpu.Host1", "0"])
        .output()
        .unwrap();
    assert!(!refused.status.success());
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("not allowed to own") || text.contains("Access denied"), "{text}");
}
