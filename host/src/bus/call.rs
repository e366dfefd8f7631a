//! A method call, and the making of its reply.

use serde::{Serialize, de::DeserializeOwned};
use zbus::{
    DynamicType, Message, Type,
    message::{Flags, Header},
};

use super::{contract::Method, error::Fault};

/// A method call of the contract, its arguments of the right types.
#[derive(Clone)]
pub(crate) struct Call {
    message: Message,
    method: &'static Method,
}

impl Call {
    /// A message as a call of that method.
    ///
    /// # Errors
    /// InvalidArgs when its arguments have other types than the method's.
    pub(crate) fn new(message: Message, method: &'static Method) -> Result<Self, Fault> {
        let given = message.body().signature().to_string_no_parens();
        if given != method.input {
            return Err(Fault::invalid(format!(
                "{}.{} takes arguments of the types {:?}, not {:?}",
                method.interface,
                method.member,
                method.input,
                given.chars().take(64).collect::<String>(),
            )));
        }
        Ok(Self { message, method })
    }

    /// The message.
    pub(crate) fn message(&self) -> &Message {
        &self.message
    }

    /// The header.
    pub(crate) fn header(&self) -> Header<'_> {
        self.message.header()
    }

    /// The method.
    pub(crate) fn method(&self) -> &'static Method {
        self.method
    }

    /// The sender's unique name, empty when the message has none.
    pub(crate) fn sender(&self) -> String {
        self.header().sender().map(ToString::to_string).unwrap_or_default()
    }

    /// The arguments.
    ///
    /// # Errors
    /// InvalidArgs when the message breaks its own signature.
    pub(crate) fn args<T: DeserializeOwned + Type>(&self) -> Result<T, Fault> {
        self.message.body().deserialize_ignore_signature().map_err(|error| {
            Fault::invalid(format!(
                "the arguments of {} cannot be read: {error}",
                self.method.member
            ))
        })
    }

    /// The reply with that body.
    ///
    /// # Errors
    /// Failed when the body is too large for a message.
    pub(crate) fn reply<B: Serialize + DynamicType>(&self, body: &B) -> Result<Message, Fault> {
        debug_assert_eq!(
            body.signature().to_string_no_parens(),
            self.method.output,
            "the results of {}",
            self.method.member
        );
        Message::method_return(&self.header()).build(body).map_err(|error| {
            Fault::failed(format!("the reply of {} cannot be made: {error}", self.method.member))
        })
    }
}

/// Whether the sender of a message waits for a reply.
pub(crate) fn wants_reply(message: &Message) -> bool {
    !message.primary_header().flags().contains(Flags::NO_REPLY_EXPECTED)
}
