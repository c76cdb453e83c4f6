//! Names of variants and places, on the command line and in results.

/// A set of values with names.
pub trait Named: Copy + PartialEq + 'static {
    /// All values with their names, in the order in which they are shown.
    const NAMES: &'static [(&'static str, Self)];

    /// Returns the value of this name.
    fn by_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(of, _)| *of == name).map(|(_, one)| *one)
    }

    /// Returns the names of these values.
    fn names(of: &[Self]) -> Vec<&'static str> {
        let name = |one| Self::NAMES.iter().find(|(_, other)| other == one);
        of.iter().filter_map(name).map(|(name, _)| *name).collect()
    }

    /// Returns the requested values, in the order in which they are shown, each once.
    fn in_order(asked: &[Self]) -> Vec<Self> {
        Self::NAMES.iter().map(|(_, one)| *one).filter(|one| asked.contains(one)).collect()
    }
}

/// Defines an enumeration whose variants have names.
macro_rules! named {
    ($(#[$of_enum:meta])* pub enum $of:ident { $($(#[$of_one:meta])* $one:ident = $name:literal,)* }) => {
        $(#[$of_enum])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $of {
            $($(#[$of_one])* $one,)*
        }

        impl $of {
            /// All values, in the order in which they are shown.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$one),*];

            /// Returns the name of the value.
            pub fn name(self) -> &'static str {
                <Self as $crate::named::Named>::NAMES[self as usize].0
            }
        }

        impl $crate::named::Named for $of {
            const NAMES: &'static [(&'static str, Self)] = &[$(($name, Self::$one)),*];
        }
    };
}

pub(crate) use named;
