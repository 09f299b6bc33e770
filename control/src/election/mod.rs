//! Who is the controller.
