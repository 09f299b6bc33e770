//! Offsets, and the deletion of groups, as the coordinator serves them.

use std::collections::BTreeMap;
use std::future::Future;

use tokio::time::timeout;

use super::GroupCoordinator;
use crate::group::state::{
    DeletedGroup, Effects, GroupError, OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest,
    OffsetDeleteResponse, OffsetFetchRequest, OffsetFetchResponse, Response,
};

/// How often the leadership is asked for before a fetch fails.
const CONFIRM_ATTEMPTS: usize = 3;

impl GroupCoordinator {
    /// An answer that the journal has to give in time.
    async fn in_time<T, E>(&self, answer: impl Future<Output = Result<T, E>>) -> Result<T, GroupError> {
        match timeout(self.shared.patience(), answer).await {
            Ok(Ok(answer)) => Ok(answer),
            // The slot was closed under us.
            Ok(Err(_)) => Err(GroupError::NotCoordinator),
            // It may become durable yet; the client asks again.
            Err(_) => Err(GroupError::CoordinatorNotAvailable),
        }
    }

    /// OffsetCommit. On success the offsets are durable and visible.
    pub async fn commit_offsets(&self, request: OffsetCommitRequest) -> OffsetCommitResponse {
        let (slot, topics) = (self.slot_of(&request.group_id), request.topics.clone());
        let waiting = self
            .deferred(slot, |machine, token, now, effects| {
                machine.offset_commit(request, token, now, effects)
            })
            .await;
        let answer = match waiting {
            Ok(receiver) => self.in_time(receiver).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(Response::OffsetCommit(response)) => response,
            Ok(_) => OffsetCommitResponse::failed(&topics, GroupError::UnknownServerError),
            Err(error) => OffsetCommitResponse::failed(&topics, error),
        }
    }

    /// OffsetFetch for one group. What it answers is durable, and this broker did lead the slot after the call. With
    /// `require_stable` it first waits for commits of the group that are on their way.
    pub async fn fetch_offsets(&self, request: &OffsetFetchRequest) -> OffsetFetchResponse {
        self.fetch(request).await.unwrap_or_else(|error| OffsetFetchResponse {
            group_id: request.group_id.clone(),
            error: Some(match error {
                // Not every consumer retries after this one; all look for the coordinator after the other.
                GroupError::CoordinatorNotAvailable => GroupError::NotCoordinator,
                error => error,
            }),
            topics: Vec::new(),
        })
    }

    async fn fetch(&self, request: &OffsetFetchRequest) -> Result<OffsetFetchResponse, GroupError> {
        let slot = self.slot_of(&request.group_id);
        if request.require_stable {
            self.commits_settled(&request.group_id, slot).await?;
        }
        self.confirm_leadership(slot).await?;
        self.run(&request.group_id, |machine, _, _| machine.offset_fetch(request)).await
    }

    /// Waits for what is on its way to the journal, if that includes commits of this group.
    async fn commits_settled(&self, group_id: &str, slot: usize) -> Result<(), GroupError> {
        let cell = self.shared.ready(slot).await?;
        let waiting = cell.with_open(|open| {
            let commits = open.machine.has_commits_in_flight(group_id);
            commits.then(|| (open.made, open.completed.subscribe()))
        });
        let Some(Some((made, mut completed))) = waiting else { return Ok(()) };
        self.in_time(completed.wait_for(|count| *count >= made)).await.map(|_| ())
    }

    /// A coordinator that has been replaced unawares must not tell a consumer where to go on: what others have
    /// committed since is not known here.
    async fn confirm_leadership(&self, slot: usize) -> Result<(), GroupError> {
        let cell = self.shared.ready(slot).await?;
        let mut last = GroupError::NotCoordinator;
        for _ in 0..CONFIRM_ATTEMPTS {
            let Some(asked) = cell.with_open(|open| open.log.confirm()) else {
                return Err(GroupError::NotCoordinator);
            };
            match timeout(self.shared.patience(), asked).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) if error.is_final() => {
                    let answer = error.answer();
                    cell.with_open(|open| {
                        open.failure = Some(error);
                        open.wake.notify_one();
                    });
                    return Err(answer);
                }
                // It shared the fate of an append that had no room.
                Ok(Err(error)) => last = error.answer(),
                Err(_) => return Err(GroupError::CoordinatorNotAvailable),
            }
        }
        Err(last)
    }

    /// OffsetDelete. On success the deletion is durable.
    pub async fn delete_offsets(&self, request: OffsetDeleteRequest) -> OffsetDeleteResponse {
        let slot = self.slot_of(&request.group_id);
        let waiting = self
            .deferred(slot, |machine, token, now, effects| {
                machine.offset_delete(request, token, now, effects)
            })
            .await;
        let answer = match waiting {
            Ok(receiver) => self.in_time(receiver).await,
            Err(error) => Err(error),
        };
        let failed = |error| OffsetDeleteResponse { error: Some(error), topics: Vec::new() };
        match answer {
            Ok(Response::OffsetDelete(response)) => response,
            Ok(_) => failed(GroupError::UnknownServerError),
            Err(error) => failed(error),
        }
    }

    /// DeleteGroups, grouped by slot. On success a group and its offsets are durably gone.
    pub async fn delete_groups(&self, group_ids: Vec<String>) -> Vec<DeletedGroup> {
        let mut by_slot: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for group_id in group_ids {
            by_slot.entry(self.slot_of(&group_id)).or_default().push(group_id);
        }
        let mut deleted = Vec::new();
        for (slot, ids) in by_slot {
            let waiting = self
                .deferred(slot, |machine, token, now, effects| {
                    machine.delete_groups(&ids, token, now, effects)
                })
                .await;
            let answer = match waiting {
                Ok(receiver) => self.in_time(receiver).await,
                Err(error) => Err(error),
            };
            let error = match answer {
                Ok(Response::DeleteGroups(groups)) => {
                    deleted.extend(groups);
                    continue;
                }
                Ok(_) => GroupError::UnknownServerError,
                Err(error) => error,
            };
            deleted.extend(ids.into_iter().map(|group_id| DeletedGroup { group_id, error: Some(error) }));
        }
        deleted
    }

    /// Removes the offsets of partitions that have been deleted, in all groups. Durable on success.
    ///
    /// # Errors
    /// A slot cannot be loaded, or its journal does not answer in time: some offsets may be left. To be repeated.
    pub async fn partitions_deleted(
        &self,
        partitions: &BTreeMap<String, Vec<i32>>,
    ) -> Result<(), GroupError> {
        let mut waiting = Vec::new();
        for cell in self.existing().await? {
            let begun = cell.with_open(|open| {
                let (token, receiver) = open.wait();
                let mut effects = Effects::new();
                open.machine.partitions_deleted(partitions, token, self.shared.now(), &mut effects);
                open.execute(effects);
                receiver
            });
            waiting.push(begun.ok_or(GroupError::CoordinatorLoadInProgress)?);
        }
        for receiver in waiting {
            let answer = self.in_time(receiver).await?;
            if let Response::OffsetDelete(OffsetDeleteResponse { error: Some(error), .. }) = answer {
                return Err(error);
            }
        }
        Ok(())
    }
}
