//! What can go wrong with a group request, one to one with Kafka's error codes.

use thiserror::Error;

/// An error of the group APIs. Every variant is one Kafka error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum GroupError {
    #[error("unexpected server error")]
    UnknownServerError,
    #[error("the committed metadata is too large")]
    OffsetMetadataTooLarge,
    #[error("the coordinator is loading the group")]
    CoordinatorLoadInProgress,
    #[error("the coordinator is not available")]
    CoordinatorNotAvailable,
    #[error("this broker does not coordinate the group")]
    NotCoordinator,
    #[error("the generation is not the current one")]
    IllegalGeneration,
    #[error("the protocol type or the protocols do not fit the group's")]
    InconsistentGroupProtocol,
    #[error("the group id is invalid")]
    InvalidGroupId,
    #[error("the group does not know this member")]
    UnknownMemberId,
    #[error("the session timeout is outside the allowed range")]
    InvalidSessionTimeout,
    #[error("the group is rebalancing")]
    RebalanceInProgress,
    #[error("the group is not empty")]
    NonEmptyGroup,
    #[error("there is no such group")]
    GroupIdNotFound,
    #[error("the member must join again with the id it was given")]
    MemberIdRequired,
    #[error("the group has reached its maximum size")]
    GroupMaxSizeReached,
    #[error("another member has taken over this group instance id")]
    FencedInstanceId,
    #[error("the group is subscribed to the topic")]
    GroupSubscribedToTopic,
    #[error("a transaction with offsets of this partition is not finished")]
    UnstableOffsetCommit,
}

impl GroupError {
    /// The error code on the wire.
    pub fn code(self) -> i16 {
        match self {
            Self::UnknownServerError => -1,
            Self::OffsetMetadataTooLarge => 12,
            Self::CoordinatorLoadInProgress => 14,
            Self::CoordinatorNotAvailable => 15,
            Self::NotCoordinator => 16,
            Self::IllegalGeneration => 22,
            Self::InconsistentGroupProtocol => 23,
            Self::InvalidGroupId => 24,
            Self::UnknownMemberId => 25,
            Self::InvalidSessionTimeout => 26,
            Self::RebalanceInProgress => 27,
            Self::NonEmptyGroup => 68,
            Self::GroupIdNotFound => 69,
            Self::MemberIdRequired => 79,
            Self::GroupMaxSizeReached => 81,
            Self::FencedInstanceId => 82,
            Self::GroupSubscribedToTopic => 86,
            Self::UnstableOffsetCommit => 88,
        }
    }
}

/// The error code on the wire of "no error, or this one".
pub fn code_of(error: Option<GroupError>) -> i16 {
    error.map_or(0, GroupError::code)
}
