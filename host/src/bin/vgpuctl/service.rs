//! The way to the service.

use vgpu_host_api::{
    error, names,
    proxy::{Facts, GpuProxy, ManagerProxy, NvidiaVgpu1Proxy, VgpuProxy},
};
use zbus::{
    Connection, ObjectPath, OwnedObjectPath, fdo::PropertiesProxy, names::InterfaceName,
    proxy::CacheProperties,
};

use crate::failure::{Code, Failure, Result};

/// A connection to the bus that the service is on.
pub(crate) struct Service {
    connection: Connection,
    address: Option<String>,
}

impl Service {
    /// Connects to the bus at `address`, or to the system bus.
    pub(crate) async fn connect(address: Option<&str>) -> Result<Self> {
        let builder = match address {
            Some(address) => zbus::connection::Builder::address(address),
            None => zbus::connection::Builder::system(),
        };
        let connection = builder.build().await.map_err(|error| match address {
            Some(address) => {
                Failure::new(Code::Unreachable, format!("cannot reach the bus at {address:?}: {error}; start that bus, or name another with --bus or VGPU_BUS"))
            }
            None => Failure::new(
                Code::Unreachable,
                format!("cannot reach the system bus: {error}; start dbus, or name another bus with --bus"),
            ),
        })?;
        Ok(Self { connection, address: address.map(str::to_owned) })
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) async fn manager(&self) -> Result<ManagerProxy<'static>> {
        let builder = ManagerProxy::builder(&self.connection).cache_properties(CacheProperties::No);
        builder.build().await.map_err(|error| self.failure(error))
    }

    /// The GPU that people call `name`.
    pub(crate) async fn gpu(&self, name: &str) -> Result<GpuProxy<'static>> {
        let path = self.said(self.manager().await?.get_gpu(name).await)?;
        self.gpu_at(path).await
    }

    /// The GPU at a path that the service gave.
    pub(crate) async fn gpu_at(&self, path: OwnedObjectPath) -> Result<GpuProxy<'static>> {
        let builder = GpuProxy::builder(&self.connection).cache_properties(CacheProperties::No);
        builder.path(path).build().await.map_err(|error| self.failure(error))
    }

    /// The vGPU that people call `name`.
    pub(crate) async fn vgpu(&self, name: &str) -> Result<VgpuProxy<'static>> {
        let path = self.said(self.manager().await?.get_vgpu(name).await)?;
        self.vgpu_at(path).await
    }

    /// The vGPU at a path that the service gave.
    pub(crate) async fn vgpu_at(&self, path: OwnedObjectPath) -> Result<VgpuProxy<'static>> {
        let builder = VgpuProxy::builder(&self.connection).cache_properties(CacheProperties::No);
        builder.path(path).build().await.map_err(|error| self.failure(error))
    }

    /// What NVIDIA's driver has of the vGPU at a path; `None` where it is none of
    /// that.
    pub(crate) async fn nvidia_vgpu_at(
        &self,
        path: ObjectPath<'static>,
    ) -> Result<Option<NvidiaVgpu1Proxy<'static>>> {
        if self.properties_if_any(path.as_str(), names::NVIDIA_VGPU).await?.is_none() {
            return Ok(None);
        }
        let builder =
            NvidiaVgpu1Proxy::builder(&self.connection).cache_properties(CacheProperties::No);
        builder.path(path).build().await.map(Some).map_err(|error| self.failure(error))
    }

    /// The properties of an interface that an object has.
    pub(crate) async fn properties(&self, path: &str, interface: &str) -> Result<Facts> {
        self.said(self.get_all(path, interface).await)
    }

    /// The same; `None` where the object has no such interface.
    pub(crate) async fn properties_if_any(
        &self,
        path: &str,
        interface: &str,
    ) -> Result<Option<Facts>> {
        match self.get_all(path, interface).await {
            Ok(facts) => Ok(Some(facts)),
            Err(error) if is_unknown_interface(&error) => Ok(None),
            Err(error) => Err(self.failure(error)),
        }
    }

    async fn get_all(&self, path: &str, interface: &str) -> zbus::Result<Facts> {
        let reader = PropertiesProxy::new(&self.connection, names::SERVICE, path).await?;
        Ok(reader.get_all(InterfaceName::try_from(interface)?).await?)
    }

    /// What the service answered, with its error in our words.
    pub(crate) fn said<T>(&self, answer: zbus::Result<T>) -> Result<T> {
        answer.map_err(|error| self.failure(error))
    }

    /// The service's error: its text as it is, or how to start it.
    pub(crate) fn failure(&self, error: zbus::Error) -> Failure {
        let failure = match error::Failure::of(&error) {
            Some(failure) => Failure::named(&failure.name, &failure.text),
            None if matches!(error, zbus::Error::InputOutput(_)) => {
                Failure::new(Code::Unreachable, error.to_string())
            }
            None => Failure::other(error.to_string()),
        };
        match failure {
            Failure::Said { code: Code::Unreachable, message } => {
                Failure::new(Code::Unreachable, self.unreachable(&message))
            }
            failure => failure,
        }
    }

    fn unreachable(&self, message: &str) -> String {
        let message = message.trim_end_matches('.');
        match &self.address {
            None => format!(
                "vgpu-hostd does not answer: {message}; start it: systemctl start vgpu-hostd"
            ),
            Some(address) => {
                format!(
                    "vgpu-hostd does not answer: {message}; start it, from the libexec folder, with --bus {address}"
                )
            }
        }
    }
}

fn is_unknown_interface(failed: &zbus::Error) -> bool {
    error::Failure::of(failed)
        .is_some_and(|failure| failure.name == error::standard::UNKNOWN_INTERFACE)
}
