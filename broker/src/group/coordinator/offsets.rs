//! Offsets, and the deletion of groups, as the coordinator serves them.

use std::collections::BTreeMap;
use std::future::Future;

use tokio::time::timeout;

use super::GroupCoordinator;
use crate::group::state::{
    DeletedGroup, Effects, GroupError, OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest,
    OffsetDeleteResponse, OffsetFetchRequest, OffsetFetchResponse, Response,
};

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

    /// OffsetFetch for one group. What it answers is durable. With `require_stable` it first waits for commits of the
    /// group that are on their way.
    pub async fn fetch_offsets(&self, request: &OffsetFetchRequest) -> OffsetFetchResponse {
        let failed = |error| OffsetFetchResponse {
            group_id: request.group_id.clone(),
            error: Some(error),
            topics: Vec::new(),
        };
        if request.require_stable
            && let Err(error) = self.commits_settled(&request.group_id).await
        {
            return failed(error);
        }
        self.run(&request.group_id, |machine, _, _| machine.offset_fetch(request))
            .await
            .unwrap_or_else(failed)
    }

    /// Waits for what is on its way to the journal, if that includes commits of this group.
    async fn commits_settled(&self, group_id: &str) -> Result<(), GroupError> {
        let cell = self.shared.ready(self.slot_of(group_id)).await?;
        let waiting = cell.with_open(|open| {
            let commits = open.machine.has_commits_in_flight(group_id);
            commits.then(|| (open.made, open.completed.subscribe()))
        });
        let Some(Some((made, mut completed))) = waiting else { return Ok(()) };
        let settled = self.in_time(completed.wait_for(|count| *count >= made)).await.map(|_| ());
        // Consumers look for the coordinator on this error; others they would not all retry.
        settled.map_err(|_| GroupError::NotCoordinator)
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
