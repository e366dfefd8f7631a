//! Signals: one for each change, in order, before the reply of the call that
//! made them.

use std::collections::HashMap;

use futures_util::StreamExt as _;
use zbus::{Connection, MatchRule, Message, MessageStream, OwnedObjectPath, OwnedVariant};

use crate::{
    bus::{Bus, Options, ROOT, VGPU, call, create, options, remove},
    served::Served,
};

/// A signal of the daemon's from now on.
pub(crate) async fn watch(connection: &Connection, member: &str) -> MessageStream {
    let rule = MatchRule::builder()
        .msg_type(zbus::message::Type::Signal)
        .sender("org.vgpu.Host1")
        .member(member.to_owned())
        .build()
        .unwrap();
    MessageStream::for_match_rule(rule, connection, None).await.unwrap()
}

/// The next of them.
pub(crate) async fn next(stream: &mut MessageStream) -> Message {
    stream.next().await.expect("the bus is there").unwrap()
}

/// Everything that the daemon sends from now on, in order.
struct Everything(MessageStream);

impl Everything {
    async fn of(connection: &Connection) -> Self {
        for interface in ["org.freedesktop.DBus.ObjectManager", "org.freedesktop.DBus.Properties"] {
            let rule = format!("type='signal',sender='org.vgpu.Host1',interface='{interface}'");
            let body = &(rule.as_str(),);
            let dbus = "org.freedesktop.DBus";
            let path = "/org/freedesktop/DBus";
            connection.call_method(Some(dbus), path, Some(dbus), "AddMatch", body).await.unwrap();
        }
        Self(MessageStream::from(connection))
    }

    /// What came up to and with the next reply: member and path of each signal
    /// (for an object's coming and going, of the object), then `reply`.
    async fn until_reply(&mut self) -> Vec<(String, String)> {
        let mut seen = Vec::new();
        loop {
            let message = self.0.next().await.unwrap().unwrap();
            let header = message.header();
            let Some(member) = header.member() else {
                seen.push(("reply".to_owned(), String::new()));
                return seen;
            };
            let path = match member.as_str() {
                "PropertiesChanged" => header.path().unwrap().to_string(),
                "InterfacesAdded" => {
                    let body = message.body();
                    let (path, _): (OwnedObjectPath, HashMap<String, Options>) =
                        body.deserialize().unwrap();
                    path.to_string()
                }
                "InterfacesRemoved" => {
                    let body = message.body();
                    let (path, gone): (OwnedObjectPath, Vec<String>) = body.deserialize().unwrap();
                    assert_eq!(gone, [VGPU]);
                    path.to_string()
                }
                _ => continue,
            };
            seen.push((member.to_string(), path));
        }
    }
}

const MTTY: &str = "/org/vgpu/Host1/gpus/mdev_mtty";

#[tokio::test]
async fn a_change_is_told_before_the_reply() {
    let bus = Bus::start();
    let _served = Served::start(&bus);
    let (connection, watcher) = (bus.connect().await, bus.connect().await);
    let mut seen = Everything::of(&connection).await;
    let vgpu = create(&watcher, "mtty-1", Options::new()).await;
    let ping = ("org.freedesktop.DBus.Peer", "Ping");
    call(&connection, ROOT, ping.0, ping.1, &()).await.unwrap();
    let told = seen.until_reply().await;
    let about =
        |member: &str, path: &str| told.iter().filter(|(m, p)| m == member && p == path).count();
    assert_eq!(about("InterfacesAdded", &vgpu), 1, "{told:?}");
    // Its GPU has one less now.
    assert!(about("PropertiesChanged", MTTY) >= 1, "{told:?}");

    remove(&watcher, &vgpu).await;
    call(&connection, ROOT, ping.0, ping.1, &()).await.unwrap();
    let told = seen.until_reply().await;
    let about =
        |member: &str, path: &str| told.iter().filter(|(m, p)| m == member && p == path).count();
    assert_eq!(about("InterfacesRemoved", &vgpu), 1, "{told:?}");
    assert!(about("PropertiesChanged", MTTY) >= 1, "{told:?}");
}

#[tokio::test]
async fn the_caller_sees_its_change_before_its_reply() {
    let bus = Bus::start();
    let _served = Served::start(&bus);
    let connection = bus.connect().await;
    let mut seen = Everything::of(&connection).await;
    let vgpu = create(&connection, "mtty-1", Options::new()).await;
    let told = seen.until_reply().await;
    assert!(told.contains(&("InterfacesAdded".into(), vgpu.clone())), "{told:?}");
    remove(&connection, &vgpu).await;
    let told = seen.until_reply().await;
    assert!(told.contains(&("InterfacesRemoved".into(), vgpu)), "{told:?}");
}

#[tokio::test]
async fn a_changed_property_is_told_once_with_nothing_else() {
    let bus = Bus::start();
    let _served = Served::start(&bus);
    let connection = bus.connect().await;
    let mut changes = watch(&connection, "PropertiesChanged").await;
    let options = options([("gpu", "mtty".into())]);
    create(&connection, "mtty-2", options).await;
    let ping = "org.freedesktop.DBus.Peer";
    call(&connection, ROOT, ping, "Ping", &()).await.unwrap();
    // What is told of the GPU never repeats a value.
    let mut values: HashMap<String, OwnedVariant> = HashMap::new();
    use futures_util::FutureExt as _;
    let mut count = 0;
    while let Some(Some(Ok(message))) = changes.next().now_or_never() {
        if message.header().path().unwrap().as_str() != MTTY {
            continue;
        }
        count += 1;
        let (interface, changed, invalidated): (String, Options, Vec<String>) =
            message.body().deserialize().unwrap();
        assert_eq!(interface, "org.vgpu.Host1.Gpu");
        assert!(invalidated.is_empty());
        assert_eq!(changed.keys().collect::<Vec<_>>(), ["Capacity"], "mdevs change nothing else");
        for (name, value) in changed {
            let again = values.insert(name.clone(), value.try_clone().unwrap());
            assert_ne!(again.as_ref(), Some(&value), "{name} was told twice");
        }
    }
    assert!(count >= 1);
    let capacity: HashMap<String, (u32, String)> =
        values["Capacity"].try_clone().unwrap().try_into().unwrap();
    assert_eq!(capacity["mtty-2"], (11, "ok".into()));
    assert_eq!(capacity["mtty-1"], (22, "ok".into()));
}

#[tokio::test]
async fn a_foreign_change_is_told_without_any_call() {
    let bus = Bus::start();
    let served = Served::start(&bus);
    let connection = bus.connect().await;
    let mut added = watch(&connection, "InterfacesAdded").await;
    let uuid = "22222222-2222-4333-8444-555555555555";
    use vgpu_mdev::sys::Kernel as _;
    let create = "devices/virtual/mtty/mtty/mdev_supported_types/mtty-1/create";
    served.kernel.write(&create.parse().unwrap(), uuid).unwrap();
    let message = next(&mut added).await;
    let (path, interfaces): (OwnedObjectPath, HashMap<String, Options>) =
        message.body().deserialize().unwrap();
    assert_eq!(path.as_str(), format!("/org/vgpu/Host1/vgpus/{}", uuid.replace('-', "_")));
    assert_eq!(interfaces[VGPU]["Managed"], OwnedVariant::from(false));
    let failed = call(&connection, path.as_str(), VGPU, "Remove", &(Options::new(),)).await;
    assert_eq!(failed.unwrap_err().name, "org.vgpu.Host1.Error.NotManaged");
}
