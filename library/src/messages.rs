//! Error messages without a derive macro from another crate.

/// Implements `Error` with one message for each variant: `Variant(fields) => ("format", arguments)`.
macro_rules! messages {
    ($error:ty { $($(#[$condition:meta])* $kind:pat => ($($message:tt)+),)+ }) => {
        impl std::fmt::Display for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $($(#[$condition])* $kind => write!(f, $($message)+),)+
                }
            }
        }

        impl std::error::Error for $error {}
    };
}

/// Implements `From` for the errors inside variants.
macro_rules! holds {
    ($error:ident { $($(#[$condition:meta])* $kind:ident($held:ty),)+ }) => {
        $($(#[$condition])*
        impl From<$held> for $error {
            fn from(held: $held) -> Self {
                $error::$kind(held)
            }
        })+
    };
}
